package policy

import (
	"cmp"
	"slices"
	"strings"
)

// languageRange is a range of Accept-Language for which an object in a rule's language is served.
type languageRange struct {
	tag      string // lower case
	language int    // index, -1 for none: a shorter range doesn't count
}

// findLanguageRanges returns the ranges for languages: themselves, and ranges with the same meaning by the likely
// subtags and parents of Unicode's CLDR: pt means pt-br, zh-tw means zh-hant, es-mx falls back to es-419.
func findLanguageRanges(languages []string) (all []languageRange) {
	add := func(i int, tags []string) {
		for _, tag := range tags {
			if !slices.ContainsFunc(all, func(r languageRange) bool { return r.tag == tag }) {
				all = append(all, languageRange{tag, i})
			}
		}
	}
	order := make([]int, 0, len(languages)) // broader languages first
	for i, language := range languages {
		at := 0
		for at < i && (len(languages[order[at]]) < len(language) ||
			len(languages[order[at]]) == len(language) && languages[order[at]] < language) {
			at++
		}
		order = slices.Insert(order, at, i)
		add(i, []string{language})
	}
	found := make([]otherRanges, len(languages))
	for _, i := range order {
		found[i] = findRanges(languages[i])
		add(i, found[i].same)
	}
	for _, i := range order {
		add(i, found[i].below)
	}
	for _, i := range order {
		add(-1, found[i].except)
	}
	return all
}

// otherRanges are ranges for a language besides itself.
type otherRanges struct {
	same   []string // mean the same
	below  []string // fall back to the language
	except []string // begin like same or below, and mean another language
}

// findRanges returns the ranges for a language, in lower case.
func findRanges(tag string) (o otherRanges) {
	language, rest, _ := strings.Cut(tag, "-")
	script, region, other := "", "", false
	for subtag := range strings.SplitSeq(rest, "-") {
		switch {
		case len(subtag) == 4 && script == "" && region == "" && subtag[0] > '9':
			script = subtag
		case (len(subtag) == 2 || len(subtag) == 3 && subtag[0] <= '9') && region == "":
			region = subtag
		default:
			other = other || subtag != ""
		}
	}
	for _, alias := range findRows(aliasedLanguages, tag) {
		o.same = append(o.same, alias...)
	}
	if rest == "" || other {
		return o
	}
	for _, regions := range findRows(childRegions, tag) {
		o.below = append(o.below, joinSubtags(language, regions)...)
	}
	usual := [2]string{}
	if row := findRows(likelySubtags, language); row != nil {
		usual = [2]string{row[0][0], row[0][1]}
	}
	written := findRows(otherScripts, language) // rows of script, likely region, all regions
	for _, row := range written {
		likely, regions := row[1], row[2:]
		if script != row[0] && (script != "" || !slices.Contains(regions, region)) {
			continue
		}
		region = cmp.Or(region, likely)
		o.same = append(o.same, language+"-"+row[0]+"-"+region)
		if slices.Contains(regions, region) {
			o.same = append(o.same, language+"-"+region)
		}
		if region == likely { // the script as such
			o.same, o.below = append(o.same, language+"-"+row[0]), append(o.below, joinSubtags(language, regions)...)
		}
		return o
	}
	if script != "" && script != usual[0] {
		return o
	}
	if region != "" {
		o.same = append(o.same, language+"-"+region, language+"-"+usual[0]+"-"+region)
	}
	if region == "" || region == usual[1] {
		o.same = append(o.same, language+"-"+usual[0], language)
		for _, row := range written {
			o.except = append(append(o.except, language+"-"+row[0]), joinSubtags(language, row[2:])...)
		}
	}
	return o
}

// findRows returns the words behind word in the rows of a table that begin with word.
func findRows(table, word string) (found [][]string) {
	for row := range strings.SplitSeq(table, ";") {
		if rest, is := strings.CutPrefix(row, word+" "); is {
			found = append(found, strings.Fields(rest))
		}
	}
	return found
}

func joinSubtags(language string, subtags []string) (all []string) {
	for _, subtag := range subtags {
		all = append(all, language+"-"+subtag)
	}
	return all
}

// aliasedLanguages are languages and their aliases: older codes, the two written forms of Norwegian, and international
// English.
const aliasedLanguages = "nb no nn;no nb nn;he iw;iw he;id in;in id;fil tl;tl fil;ro mo;mo ro;yi ji;ji yi;jv jw;" +
	"jw jv;sr-latn sh;sh sr-latn;en-001 en"
