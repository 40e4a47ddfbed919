package envoyconfig

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// checkPrivateAnswers checks that routes under auth rules add the headers that keep caches from giving one device's
// answer to other clients.
func (a *analysis) checkPrivateAnswers(p *plugin) {
	if !p.auth {
		return
	}
	notes := []policy.Note{policy.NoteVary, policy.NoteCacheControl}
	if slices.ContainsFunc(p.Rules.Rules, func(r policy.Rule) bool {
		return r.Auth != nil && r.Cache != nil && r.Cache.PerDevice
	}) {
		notes = append(notes, policy.NoteNoStore)
	}
	tokens := a.tokenHeaders(p)
	for _, rt := range a.judgedRoutes(p) {
		if !rt.sendsUpstream() || rt.ProtectedPaths() == nil {
			continue
		}
		for _, note := range notes {
			header := "cache-control"
			if note == policy.NoteVary {
				header = "vary"
			}
			if !rt.addsResponseHeader(header, "wasm."+note.String()) {
				a.add(&sharedAnswers, p.ListenerName(), rt.at,
					"adds no %s by %s: a cache before Envoy may give one device's answer to others", header, note)
				return
			}
		}
		for _, name := range tokens {
			if !rt.addsResponseHeader("vary", name) {
				a.add(&sharedAnswers, p.ListenerName(), rt.at,
					"adds no vary: %s, from which tokens are read: a cache before Envoy may give one device's answer to others", name)
				return
			}
		}
	}
}

// addsResponseHeader reports whether the route, or a level above the route, adds a response header whose value contains
// text, and no level removes the header again.
func (rt *httpRoute) addsResponseHeader(header, text string) (added bool) {
	levels := slices.Clone(rt.levels)
	if !rt.levels[0].config.Flag("most_specific_header_mutations_wins") {
		slices.Reverse(levels) // the route's own headers come first
	}
	for _, l := range levels {
		removed, _ := l.config.Field("response_headers_to_remove").([]any) // removal comes before addition
		added = added && !slices.ContainsFunc(removed, func(v any) bool {
			name, _ := v.(string)
			return strings.EqualFold(name, header)
		})
		added = added || slices.ContainsFunc(l.config.List("response_headers_to_add"), func(option object) bool {
			h := option.Object("header")
			return strings.EqualFold(h.Text("key"), header) &&
				strings.Contains(strings.ToLower(h.Text("value")), strings.ToLower(text))
		})
	}
	return added
}

// tokenHeaders returns the headers, except Authorization, from which a filter before Gatehouse's reads session tokens.
func (a *analysis) tokenHeaders(p *plugin) (names []string) {
	for _, provider := range a.jwtProviders(p) {
		for _, from := range provider.List("from_headers") {
			if name := from.Text("name"); !strings.EqualFold(name, "authorization") {
				names = append(names, name)
			}
		}
	}
	return names
}

// jwtProviders returns the jwt_authn providers, in filters before Gatehouse's, that write the metadata from which the
// rules read claims.
func (a *analysis) jwtProviders(p *plugin) (all []object) {
	for _, filter := range p.Filters[:p.Index] {
		kind, config := a.WithDiscovered(filter).Object("typed_config").Typed()
		if !envoyrules.IsType(kind, jwtType) || p.Rules.SessionMetadata == "" {
			continue
		}
		providers := config.Object("providers")
		for _, key := range providers.Keys() {
			if provider := providers.Object(key); provider.Text("payload_in_metadata") == p.Rules.SessionMetadata {
				all = append(all, provider)
			}
		}
	}
	return all
}
