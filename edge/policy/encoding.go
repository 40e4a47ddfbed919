package policy

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// weights are a client's preferences for the codings that can be stored, in thousandths,
// by RFC 9110, section 12.5.3.
type weights [wire.Encodings]int

// identityFallback is the weight of identity if the client doesn't name it, in halves of a thousandth: acceptable, but
// below every named coding.
const identityFallback = 1

// chooseVariant returns the index of the variant that the client prefers, with equal weights the shorter, or -1 if the
// client accepts none.
func chooseVariant(variants []wire.Variant, acceptEncoding string) int {
	if acceptEncoding == "" { // any coding or none may be acceptable; identity surely is
		return slices.IndexFunc(variants, func(v wire.Variant) bool { return v.Encoding == wire.Identity })
	}
	best, bestWeight := -1, 0
	var w weights
	w.parse(acceptEncoding)
	for i := range variants {
		weight := 2 * w[variants[i].Encoding]
		if weight < 0 { // not named
			weight = 0
			if variants[i].Encoding == wire.Identity {
				weight = identityFallback
			}
		}
		if weight > bestWeight || weight == bestWeight && best >= 0 && variants[i].Length < variants[best].Length {
			best, bestWeight = i, weight
		}
	}
	return best
}

// parse sets the weight of each coding; -1: neither named nor covered by "*".
func (w *weights) parse(list string) {
	const unset = -1
	star := unset
	for i := range w {
		w[i] = unset
	}
	for list != "" {
		var item string
		item, list, _ = strings.Cut(list, ",")
		name, params, _ := strings.Cut(item, ";")
		name = strings.Trim(name, " \t")
		weight := parseQuality(params)
		if name == "*" {
			star = weight
			continue
		}
		for e := range wire.Encodings {
			if strings.EqualFold(name, e.String()) || e == wire.Gzip && strings.EqualFold(name, "x-gzip") {
				w[e] = weight
			}
		}
	}
	for i := range w {
		if w[i] == unset {
			w[i] = star
		}
	}
}

// parseQuality returns the q parameter in thousandths; absent is 1000, malformed is 0.
func parseQuality(params string) int {
	params = strings.Trim(params, " \t")
	if params == "" {
		return 1000
	}
	if len(params) < 3 || params[0] != 'q' && params[0] != 'Q' || params[1] != '=' {
		return 0
	}
	value := params[2:]
	if value[0] != '0' && value[0] != '1' || len(value) > 5 || len(value) > 1 && value[1] != '.' {
		return 0
	}
	weight, scale := int(value[0]-'0')*1000, 100
	for i := 2; i < len(value); i++ {
		if value[i] < '0' || value[i] > '9' {
			return 0
		}
		weight += int(value[i]-'0') * scale
		scale /= 10
	}
	return min(weight, 1000)
}
