package e2e

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
)

const (
	contractDoc   = "../docs/redis-contract.md"
	pythonExample = "testdata/publish_example.py"
)

// TestContractDocument compares the document with the code.
func TestContractDocument(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	var err error
	shared := map[string]int64{
		"key": limits.MaxKey, "query": limits.MaxPairs, "device id": limits.MaxDeviceID, "secret": limits.MaxSecret,
		"entity-tag":   limits.MaxETag,
		"content type": limits.MaxContentType, "body": limits.MaxBody, "hashes": contract.MaxHashes,
		"headers": limits.MaxHeaders, "header lines": limits.MaxHeaderLines, "header name": limits.MaxHeaderName,
		"labels": contract.MaxLabels,
		"purge":  limits.MaxKey, "tags": contract.MaxTags, "tag": limits.MaxTag,
		"lowest cost": contract.MinCost, "highest cost": contract.MaxCost,
		"memory": contract.MaxRunMemory, "permissions": limits.MaxPermissions,
		"permission": limits.MaxPermissionName, "number": limits.MaxVersion,
		"own version": limits.MaxOwnVersion,
		"tombstone":   contract.TombstoneLife.Milliseconds(), "data epoch": longestEpoch(),
	}
	documented := map[string]int64{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z -]+) \| (\d+) \|`).FindAllStringSubmatch(
		sectionOf(t, "Limits"), -1) {
		if documented[row[1]], err = strconv.ParseInt(row[2], 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if !maps.Equal(documented, shared) {
		t.Errorf("limits: got  %v\nwant %v", documented, shared)
	}
	out, err := runPython(t, "", "-c", "import sys; sys.path.insert(0, 'testdata'); from publish_example import *; "+
		"print(MAX_KEY, MAX_PAIRS, MAX_BODY, MAX_SECRET, TOMBSTONE_LIFE_MS)")
	if want := fmt.Sprint(shared["key"], shared["query"], shared["body"], shared["secret"],
		shared["tombstone"]); err != nil || out != want {
		t.Errorf("the example's limits: got %s, %v, want %s", out, err, want)
	}
	documentedFields(t)
	documentedForms(t, shared)
	documentedHeaders(t)
}

// documentedHeaders compares the list of refused headers with the check of the code.
func documentedHeaders(t *testing.T) {
	t.Helper()
	_, list, _ := strings.Cut(sectionOf(t, "Records"), "### Headers")
	_, list, _ = strings.Cut(list, "```text\n")
	list, _, _ = strings.Cut(list, "```")
	names := strings.Fields(list)
	if len(names) != 24 {
		t.Errorf("got %d names, want 24", len(names))
	}
	for _, name := range names {
		if !limits.RefusedHeader(strings.Replace(name, "*", "a", 1)) {
			t.Errorf("%s is documented as refused, and isn't", name)
		}
	}
}

// TestOriginHeadersDoc compares the list of headers that need a rule's permission with the check of the code.
func TestOriginHeadersDoc(t *testing.T) {
	text, err := os.ReadFile("../docs/rules.md")
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(text), "## Headers of the origin")
	names := strings.Fields(codeBlock(t, list, "text"))
	for _, name := range names {
		if !limits.OriginHeader(name) {
			t.Errorf("%s is documented as a header of the origin, and isn't", name)
		}
	}
	if got, want := len(names), len(actOnOrigin); got != want {
		t.Errorf("got %d names, want %d", got, want)
	}
}

// documentedFields compares the tables of fields with the fields that the parsers accept.
func documentedFields(t *testing.T) {
	t.Helper()
	records := sectionOf(t, "Records")
	head, rest, _ := strings.Cut(records, "An object besides:")
	object, rest, _ := strings.Cut(rest, "A credential besides:")
	credential, purge, _ := strings.Cut(rest, "A purge besides")
	var all []string
	for text, of := range map[string][3]bool{
		head: {true, true, true}, object: {true, false, false}, credential: {false, true, false}, purge: {false, false, true},
	} {
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z.-]+)` \\|").FindAllStringSubmatch(text, -1) {
			fields := map[string]string{contract.FieldVersion: "1", contract.FieldPublished: "1", row[1]: "1"}
			_, objectErr := contract.ParseObject(fields)
			_, credentialErr := contract.ParseCredential(fields)
			_, purgeErr := contract.ParsePurge(fields)
			for i, err := range []error{objectErr, credentialErr, purgeErr} {
				if known := contract.ReasonOf(err) != contract.ReasonUnknown; known != of[i] {
					t.Errorf("field %s: documented %v, error %v", row[1], of[i], err)
				}
			}
			all = append(all, row[1])
		}
	}
	source, err := os.ReadFile("../clients/go/contract/keys.go")
	require.NoError(t, err)
	want := []string{contract.BodyField(wire.Gzip), contract.BodyField(wire.Brotli), contract.BodyField(wire.Zstd)}
	for _, constant := range regexp.MustCompile(`Field\w+\s+= "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		want = append(want, constant[1])
	}
	slices.Sort(all)
	slices.Sort(want)
	if !slices.Equal(all, want) {
		t.Errorf("fields: got %v, want %v", all, want)
	}
}

// documentedForms compares the regular expressions with the checks of the code.
func documentedForms(t *testing.T, bounds map[string]int64) {
	t.Helper()
	hash := "$2b$12$" + strings.Repeat("a", 53)
	rest := "$" + strings.Repeat("s", 22) + "$" + strings.Repeat("k", 43)
	ofScheme := func(scheme string) func(string) bool {
		return func(s string) bool {
			h, err := contract.ParseHash(s)
			return err == nil && h.Scheme == scheme
		}
	}
	forms := map[string]struct {
		valid   func(string) bool
		samples []string
	}{
		"device id": {limits.ValidDeviceID, []string{"dev", strings.Repeat("d", 128)}},
		"key": {limits.ValidKey, []string{"/a?b", "@dev/a", "@dev", "@/a", "/" + strings.Repeat("a", 2047),
			"/a#de", "/a?b#zh-hant-tw", "/#d", "@d#e/a#de-", "//shop/a", "//shop:a.b/", "//:[::1]/a",
			"@dev//shop/a", "//Shop/a", "//shop", "///a", "//:/a", "//shop:A/a",
			"//" + strings.Repeat("s", 64) + "/a", "//:" + strings.Repeat("h", 253) + "/a"}},
		"purge": {func(id string) bool {
			_, err := contract.ParseMember(contract.PurgeMember(id).String())
			return err == nil
		}, []string{"/", "/x/", "//shop/x/", "//shop/", "#t", "//shop#x:Y", "/" + strings.Repeat("x", 2046) + "/"}},
		"tag":          {limits.ValidTag, []string{"a:B", "/books/1?a=b#it", "a*"}},
		"entity-tag":   {limits.ValidETag, []string{`"ab"`, `"` + strings.Repeat("e", 126) + `"`, `W/"a"`}},
		"content type": {limits.ValidContentType, []string{"a", "a ", "text/plain; a=b", strings.Repeat("c", 255)}},
		"header name":  {limits.ValidHeaderName, []string{"x-a", "X-a", "x_a", "-9", "a b", "a:", strings.Repeat("n", 64)}},
		"header value": {limits.ValidHeaderValue, []string{"a", "a ", " a", "a b", "\t", strings.Repeat("v", 4000)}},
		"permission":   {limits.ValidPermission, []string{"a.b", strings.Repeat("p", 64)}},
		"secret": {limits.ValidSecret, []string{"secret value", "é", " a", "a ", " ",
			"\ufeffa", "a\ufeff", "a\n", "\ta", strings.Repeat("s", 72)}},
		"data epoch": {contract.ValidDataEpoch, []string{"beef", strings.Repeat("0", 64)}},
		"bcrypt": {ofScheme(contract.Bcrypt), []string{
			hash, "$2a$04" + hash[6:], "$2y$15" + hash[6:], "$2x$12" + hash[6:], "$2b$16" + hash[6:], "$2b$03" + hash[6:],
		}},
		"argon2id": {ofScheme(contract.Argon2id), []string{
			"$argon2id$v=19$m=131072,t=16,p=16" + rest, "$argon2id$v=19$m=131073,t=1,p=1" + rest,
			"$argon2id$v=19$m=1,t=17,p=0" + rest,
		}},
		"scrypt": {ofScheme(contract.Scrypt), []string{"$scrypt$ln=17,r=8,p=16" + rest, "$scrypt$ln=18,r=9,p=17" + rest}},
		"PBKDF2": {func(s string) bool {
			return ofScheme(contract.PBKDF2SHA256)(s) || ofScheme(contract.PBKDF2SHA512)(s)
		}, []string{
			"$pbkdf2-sha256$i=600000,l=32" + rest, "$pbkdf2-sha512$29000" + rest, "$pbkdf2-sha256$i=999" + rest,
		}},
		"gh1": {ofScheme(contract.GH1), []string{"$gh1$0123456789abcdef" + rest}},
		"label": {func(s string) bool {
			name, value, found := strings.Cut(s, "=")
			return found && contract.CheckLabel(name, value) == nil
		}, []string{
			"a._-9=Z:._-9", strings.Repeat("n", 32) + "=" + strings.Repeat("v", 64), "a=b=c", "=a",
		}},
		"namespace": {func(s string) bool { return s != "" && contract.CheckNamespace(s) == nil },
			[]string{"shop", "9-a", "-a", strings.Repeat("n", 32)}},
		"number": {validNumber, []string{"0", "10", "9007199254740991", "9007199254740992"}},
	}
	text := codeBlock(t, sectionOf(t, "Records"), "text")
	text, end, _ := strings.Cut(text, "REST  ") // of hashes
	end, after, _ := strings.Cut(strings.TrimSpace(end), "\n")
	for line := range strings.Lines(strings.ReplaceAll(text+after, "REST", end)) {
		name, expression, _ := strings.Cut(line, "  ")
		form, known := forms[name]
		if !known {
			t.Errorf("form %s is documented, but not compared", name)
			continue
		}
		delete(forms, name)
		re := regexp.MustCompile(`\A(?:` + strings.TrimSpace(expression) + `)\z`)
		for _, s := range insertBytes(form.samples) {
			matches := re.MatchString(s)
			if n, err := strconv.ParseUint(s, 10, 64); name == "number" && err == nil {
				matches = matches && n <= uint64(bounds[name])
			} else if memory := regexp.MustCompile(`m=(\d+)`).FindStringSubmatch(s); name == "argon2id" && matches {
				n, err := strconv.ParseInt(memory[1], 10, 64)
				matches = err == nil && n <= bounds["memory"]
			} else if limit := bounds[name]; name != "number" && limit != 0 {
				matches = matches && int64(len(s)) <= limit
			}
			if matches != form.valid(s) {
				t.Errorf("%s %.100q: documented %v, the code says %v", name, s, matches, form.valid(s))
			}
		}
	}
	for name := range forms {
		t.Errorf("form %s is not documented", name)
	}
}

// insertBytes returns samples, and each sample with every byte inserted at three places.
func insertBytes(samples []string) []string {
	all := append([]string{""}, samples...)
	for _, s := range samples {
		for b := range 256 {
			for _, at := range []int{0, len(s) / 2, len(s)} {
				all = append(all, s[:at]+string([]byte{byte(b)})+s[at:])
			}
		}
	}
	return all
}

func validNumber(s string) bool {
	_, err := contract.ParseObject(map[string]string{"version": "1", "published": s, "deleted": "1"})
	return err == nil
}

func longestEpoch() (n int64) {
	for contract.ValidDataEpoch(strings.Repeat("0", int(n)+1)) {
		n++
	}
	return n
}

// TestDocumentedEvent makes the document's event and parses the event.
func TestDocumentedEvent(t *testing.T) {
	t.Parallel()
	lines := codeBlock(t, sectionOf(t, "Events"), "text")
	payload := strings.ReplaceAll(strings.ReplaceAll(lines, "\n", ""), `\n`, "\n")
	if want := fmt.Sprintf("The message has %d bytes", len(payload)); !strings.Contains(sectionOf(t, "Events"), want) {
		t.Errorf("the document does not say: %s", want)
	}

	url := redistest.Start(t)
	admin := connectRedis(t, url)
	require.NoError(t, admin.MSet(t.Context(), contract.Keys{}.DataEpochKey(), "beef", contract.Keys{}.SeqKey(),
		"6").Err())
	got := newWriter(t, url, admin, contract.Keys{}).runExample(contract.ObjectMember("/a"), "", "put", "/a",
		writeFile(t, "a.txt", "hi\n"), "text/plain", "3")
	now := regexp.MustCompile(`9:published,13:\d{13},3:seq,1:7,$`) // from the clock of Redis
	got = now.ReplaceAllString(got, "9:published,13:1735689600000,3:seq,1:7,")
	digest, err := contract.Digest("", got)
	require.NoError(t, err)
	if got = got[:len("1:2,40:")] + digest + got[len("1:2,40:")+len(digest):]; got != payload {
		t.Errorf("got  %q\nwant %q", got, payload)
	}
}

// sectionOf returns the text of the document under a heading.
func sectionOf(t *testing.T, heading string) string {
	t.Helper()
	return readSection(t, contractDoc, "## "+heading)
}

// codeBlock returns the first code block of a language in a section, without the last newline.
func codeBlock(t *testing.T, section, language string) string {
	t.Helper()
	_, rest, _ := strings.Cut(section, "\n```"+language+"\n")
	code, _, found := strings.Cut(rest, "\n```")
	if !found {
		t.Fatalf("no block of %s in %s", language, contractDoc)
	}
	return code
}

// TestPythonRefuses passes invalid records to the example, which writes nothing and fails.
func TestPythonRefuses(t *testing.T) {
	url := redistest.Start(t)
	w := newWriter(t, url, connectRedis(t, url), contract.Keys{})
	for says, args := range map[string][]string{
		"permission 'a b'": {"register", "d", "a b"},
		"looks up '/a'":    {"put", "/x/../%61", writeFile(t, "a.txt", "a"), "text/plain"},
	} {
		if out, err := w.run("secret\n", args...); err == nil || !strings.Contains(out, says) {
			t.Errorf("%q: %v, %s; want a failure with %s", args, err, out, says)
		}
	}
	if seq := w.redis.Exists(t.Context(), contract.Keys{}.SeqKey()).Val(); seq != 0 {
		t.Error("something was written")
	}
}
