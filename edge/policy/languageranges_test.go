package policy

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/text/language"
)

var update = flag.Bool("update", false, "write languagetables.go")

// codes returns the two-letter codes.
func codes() (all []string) {
	for a := 'a'; a <= 'z'; a++ {
		for b := 'a'; b <= 'z'; b++ {
			all = append(all, string(a)+string(b))
		}
	}
	return all
}

func regions() (all []string) {
	for _, code := range codes() {
		if r, err := language.ParseRegion(code); err == nil && r.IsCountry() && strings.ToLower(r.String()) == code {
			all = append(all, code)
		}
	}
	return all
}

// TestLanguageTables compares the tables with golang.org/x/text, which has CLDR's data.
func TestLanguageTables(t *testing.T) {
	var likely, scripts, children []string
	for _, code := range append(codes(), "fil", "yue") {
		tag := language.Make(code)
		base, _ := tag.Base()
		script, sure := tag.Script()
		region, sureRegion := tag.Region()
		if base.String() != code || sure == language.No || sureRegion == language.No || script.String() == "Zzzz" {
			continue
		}
		likely = append(likely, strings.ToLower(fmt.Sprint(code, " ", script, " ", region)))
		others, parents := map[string][]string{}, map[string][]string{}
		for _, r := range regions() {
			here := language.Make(code + "-" + r)
			if s, _ := here.Script(); s != script {
				others[s.String()] = append(others[s.String()], r)
			} else if parent := here.Parent().String(); parent != code {
				parents[parent] = append(parents[parent], r)
			}
		}
		for s, all := range others {
			first, _ := language.Make(code + "-" + s).Region()
			scripts = append(scripts, strings.ToLower(fmt.Sprint(code, " ", s, " ", first, " ", strings.Join(all, " "))))
		}
		for parent, all := range parents {
			children = append(children, strings.ToLower(fmt.Sprint(parent, " ", strings.Join(all, " "))))
		}
	}
	var want strings.Builder
	want.WriteString("package policy\n\n" +
		"// Tables of Unicode's CLDR, by go test ./edge/policy -run TestLanguageTables -update.\n")
	for _, table := range []struct {
		name, comment string
		rows          []string
	}{
		{"likelySubtags", "has the likely script and region of a language.", likely},
		{"otherScripts", "has a language's second script, the script's likely region, and all regions with this script.",
			scripts},
		{"childRegions", "has the regions whose form of a language falls back to another region's.", children},
	} {
		slices.Sort(table.rows)
		fmt.Fprintf(&want, "\n// %s %s\nconst %s = \"\" +\n", table.name, table.comment, table.name)
		line := ""
		for _, word := range strings.SplitAfter(strings.Join(table.rows, ";"), " ") {
			if len(line)+len(word) > 110 {
				fmt.Fprintf(&want, "\t%q +\n", line)
				line = ""
			}
			line += word
		}
		fmt.Fprintf(&want, "\t%q\n", line)
	}
	if *update {
		if err := os.WriteFile("languagetables.go", []byte(want.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("languagetables.go"); err != nil || string(got) != want.String() {
		t.Errorf("languagetables.go is not CLDR's: run the test with -update (%v)", err)
	}
}

// TestLanguagesByMeaning: browsers' Accept-Language finds the language that people mean.
func TestLanguagesByMeaning(t *testing.T) {
	for _, test := range []struct{ languages, accept, want string }{
		{"zh-hant", "zh-TW", "zh-hant"}, {"zh-hant", "zh-HK,zh;q=0.9,en;q=0.8", "zh-hant"},
		{"zh zh-hant", "zh-TW,zh;q=0.9", "zh-hant"},
		{"zh-hans", "zh-CN", "zh-hans"}, {"zh-hans", "zh", "zh-hans"}, {"zh-hans", "zh-TW", ""},
		{"zh-hans en", "zh-Hant-HK, en;q=0.1", "en"},
		{"zh-hans zh-hant", "zh-SG", "zh-hans"}, {"zh-cn zh-tw", "zh-Hant", "zh-tw"}, {"zh-cn zh-tw", "zh-HK", "zh-tw"},
		{"zh-cn zh-tw", "zh-Hans", "zh-cn"}, {"zh-cn", "zh", "zh-cn"}, {"zh-tw", "zh", ""}, {"zh", "zh-TW", "zh"},
		{"zh-hant-hk zh-hant", "zh-HK", "zh-hant-hk"}, {"zh-hant-tw", "zh-TW", "zh-hant-tw"},
		{"zh-hant-tw", "zh-Hant", "zh-hant-tw"},
		{"pt-br", "pt", "pt-br"}, {"pt-br pt-pt", "pt", "pt-br"}, {"pt-br pt-pt", "pt-AO", "pt-pt"}, {"pt pt-br", "pt", "pt"},
		{"pt-br", "pt-PT", "pt-br"}, {"pt-pt", "pt", ""}, {"pt-pt", "pt-BR", ""},
		{"en", "en-GB", "en"}, {"en-us", "en", "en-us"}, {"en-gb", "en", ""}, {"en-001 en", "en-AU", "en-001"},
		{"es-419 es", "es-MX", "es-419"}, {"es-419 es", "es-ES", "es"}, {"es", "es-MX", "es"},
		{"nb", "no", "nb"}, {"no", "nb-NO", "no"}, {"nb", "nn, en;q=0.5", "nb"}, {"nn nb", "no", "nb"},
		{"sr-latn", "sr-Latn-RS", "sr-latn"}, {"sr-latn", "sr-ME", "sr-latn"}, {"sr-latn", "sh", "sr-latn"},
		{"sr-latn", "sr", ""},
		{"sr-cyrl sr-latn", "sr", "sr-cyrl"}, {"sr-cyrl sr-latn", "sr-RS", "sr-cyrl"}, {"sr", "sr-Latn", "sr"},
		{"he", "iw", "he"}, {"id", "in", "id"}, {"fil", "tl", "fil"}, {"uz-cyrl", "uz", ""}, {"de-x-a", "de", ""},
		// Refused languages stay refused.
		{"pt-br", "pt, pt-BR;q=0", ""}, {"zh-hant", "zh-TW, zh-Hant;q=0", ""}, {"nb", "no, nb;q=0", ""},
	} {
		languages := strings.Fields(test.languages)
		for range 2 {
			got := ""
			if i := lookupLanguage(languages, findLanguageRanges(languages), test.accept); i >= 0 {
				got = languages[i]
			}
			if got != test.want {
				t.Errorf("%s of %v: got %q, want %q", test.accept, languages, got, test.want)
			}
			slices.Reverse(languages) // their order doesn't matter
		}
	}
}

// TestLanguagesAsOthers compares random ranges with the matcher of golang.org/x/text, as used by other Go servers, in
// random lists of languages. The matcher knows more: languages understood by speakers of another language, and near
// regions. A range found by the matcher only must be a case of this kind, and a found range must be a match for the
// matcher, too.
func TestLanguagesAsOthers(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	tags := strings.Fields("de de-at de-ch en en-gb en-us en-001 en-au es es-419 es-es es-mx fr fr-ca fr-ch it ja ko nb " +
		"nn no pt pt-br pt-pt pt-ao ro ru sr sr-latn sr-cyrl sr-latn-rs sr-me sr-rs sv zh zh-cn zh-hans zh-hans-cn zh-hant " +
		"zh-hant-hk zh-hant-tw zh-hk zh-mo zh-sg zh-tw uz uz-cyrl uz-latn pa pa-pk pa-arab az az-cyrl az-latn he id ar " +
		"ar-eg fil nl nl-be")
	found, none, better := 0, 0, 0
	for range 20_000 {
		var languages []string
		var theirs []language.Tag
		for _, i := range r.Perm(len(tags))[:1+r.IntN(6)] {
			languages, theirs = append(languages, tags[i]), append(theirs, language.Make(tags[i]))
		}
		asked := tags[r.IntN(len(tags))]
		for base := languages[0][:2]; asked[:2] != base && r.IntN(3) > 0; {
			asked = tags[r.IntN(len(tags))]
		}
		if asked == "en-001" { // which is most like en-us for the matcher
			continue
		}
		i := lookupLanguage(languages, findLanguageRanges(languages), asked)
		_, j, confidence := language.NewMatcher(theirs).Match(language.Make(asked))
		text := fmt.Sprintf("seed %d: %s of %v", seed, asked, languages)
		switch {
		case i < 0 && confidence == language.Exact:
			t.Errorf("%s: nothing, want %s", text, languages[j])
		case i < 0:
			none++
		default:
			found++
			_, _, own := language.NewMatcher(theirs[i : i+1]).Match(language.Make(asked))
			if own == language.No && !differentScripts(asked, languages[i]) {
				t.Errorf("%s: %s is no match", text, languages[i])
			}
			if confidence == language.Exact && i != j && language.Make(asked) != theirs[i] {
				if better++; !sameMeaning(asked, languages[i]) {
					t.Errorf("%s: %s, want %s", text, languages[i], languages[j])
				}
			}
		}
	}
	t.Logf("%d found, %d not; %d with an exact match that is another one", found, none, better)
	if found < 3000 {
		t.Error("too few")
	}
}

// differentScripts reports whether RFC 4647 alone finds a language, by cutting off the script.
func differentScripts(asked, language string) bool { return strings.HasPrefix(asked, language+"-") }

// sameMeaning reports whether two tags have the same likely subtags.
func sameMeaning(a, b string) bool {
	x, y := language.Make(a), language.Make(b)
	bx, _ := x.Base()
	by, _ := y.Base()
	sx, _ := x.Script()
	sy, _ := y.Script()
	rx, _ := x.Region()
	ry, _ := y.Region()
	return bx == by && sx == sy && rx == ry
}
