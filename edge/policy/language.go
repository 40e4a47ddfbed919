package policy

import "strings"

// maxAcceptLanguage bounds a parsed Accept-Language, in bytes; a longer header is ignored.
const maxAcceptLanguage = 512

// lookupLanguage returns the index of the language for an Accept-Language, by the lookup of RFC 4647, section 3.4, with
// the ranges of [findLanguageRanges]; -1 for none. languages are in lower case. A range that a client refuses by q=0 is
// not found for a longer range either.
func lookupLanguage(languages []string, ranges []languageRange, acceptLanguage string) int {
	best, bestWeight := -1, 0
	if len(acceptLanguage) > maxAcceptLanguage {
		return best
	}
	for list := acceptLanguage; list != ""; {
		var tag string
		var weight int
		if tag, weight, list = nextRange(list); weight <= bestWeight {
			continue
		}
		found, length := -1, 0
		for i := range ranges {
			r := &ranges[i]
			if len(r.tag) > length && coversTag(r.tag, tag) &&
				(r.language < 0 || !refusesLanguage(acceptLanguage, languages[r.language])) {
				found, length = r.language, len(r.tag)
			}
		}
		if found >= 0 {
			best, bestWeight = found, weight
		}
	}
	return best
}

// nextRange returns the first range of an Accept-Language, its weight in thousandths, and the rest of the list.
func nextRange(list string) (tag string, weight int, rest string) {
	item, rest, _ := strings.Cut(list, ",")
	tag, params, _ := strings.Cut(item, ";")
	return strings.Trim(tag, " \t"), parseQuality(params), rest
}

// coversTag reports whether language is tag, or tag without some subtags at the end. A subtag of one character, which
// introduces the next subtag, is removed together with the next.
func coversTag(language, tag string) bool {
	if !beginsWith(tag, language) {
		return false
	}
	return len(tag) == len(language) || len(language) < 2 || language[len(language)-2] != '-'
}

// beginsWith reports whether tag is prefix, in any case, or prefix and further subtags.
func beginsWith(tag, prefix string) bool {
	return len(tag) >= len(prefix) && (len(tag) == len(prefix) || tag[len(prefix)] == '-') &&
		equalFold(tag[:len(prefix)], prefix)
}

// equalFold reports whether s, in any case of ASCII, is lower, which is in lower case. Both have the same length.
func equalFold(s, lower string) bool {
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// refusesLanguage reports whether the longest range of an Accept-Language that language begins with has the weight 0.
func refusesLanguage(acceptLanguage, language string) bool {
	longest, refused := 0, false
	for list := acceptLanguage; list != ""; {
		var tag string
		var weight int
		tag, weight, list = nextRange(list)
		matches := len(tag) <= len(language) && (len(tag) == len(language) || language[len(tag)] == '-') &&
			equalFold(tag, language[:len(tag)])
		if matches && (len(tag) > longest || len(tag) == longest && weight == 0) {
			longest, refused = len(tag), weight == 0
		}
	}
	return refused
}

// chooseLanguage returns the language of the object for a request, "" for none.
func (c *Cache) chooseLanguage(r *Request) string {
	if c.Languages == nil {
		return ""
	}
	if i := lookupLanguage(c.Languages, c.ranges, r.list(headerAcceptLanguage)); i >= 0 {
		return c.Languages[i]
	}
	return ""
}

// varyLanguage is answerVary for a rule with languages.
//
//go:noinline
func (p *responder) varyLanguage(r *Request, rule *Rule, encoded bool) string {
	all := append(p.text, "accept-language"...)
	if encoded {
		all = append(append(all, ", "...), varyEncoding...)
	}
	if rule.isPrivate() {
		all = append(append(all, ", "...), r.governor.varyCredential...)
	}
	return p.text.compose(all)
}
