package publish

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// replaceRecord runs the script for a record with the fields, without the checks of package publish.
func (s server) replaceRecord(t *testing.T, m contract.Member, fields map[string]string) error {
	t.Helper()
	args := []any{replace, "0", "beef", m.String(), "0", keys.EventsChannel(), "PUBLISH", ""}
	if m.Kind == contract.KindPurge && fields[contract.FieldDeleted] == "" {
		args[0] = purge
	}
	if fields[contract.FieldDeleted] != "" {
		args[4] = contract.TombstoneLife.Milliseconds()
	}
	for field, value := range fields {
		args = append(args, field, value)
	}
	all := []string{keys.RecordKey(m), keys.SeqKey(), keys.LogKey(), keys.DataEpochKey(), keys.ChainKey()}
	return s.Eval(t.Context(), writeSource, all, args...).Err()
}

// readable returns the error of a reader for a record with these fields.
func readable(m contract.Member, fields map[string]string) error {
	if _, err := contract.ParseMember(m.String()); err != nil {
		return err
	}
	stored := maps.Clone(fields)
	stored[contract.FieldVersion], stored[contract.FieldPublished] = "1", "1"
	var err error
	switch m.Kind {
	case contract.KindObject:
		_, err = contract.ParseObject(stored)
	case contract.KindPurge:
		_, err = contract.ParsePurge(stored)
	default:
		_, err = contract.ParseCredential(stored)
	}
	return err
}

// hashesOfSchemes returns hashes within and beyond each bound.
func hashesOfSchemes() (all []string) {
	long := strings.Repeat
	salt, key := "$"+long("s", 22), "$"+long("k", 43)
	for _, scheme := range []string{
		"$argon2id$v=19$m=19456,t=2,p=1", "$argon2id$v=19$m=131072,t=16,p=16", "$argon2id$v=19$m=131073,t=16,p=16",
		"$argon2id$v=19$m=1,t=17,p=1", "$argon2id$v=19$m=1,t=1,p=17", "$argon2id$v=19$m=0,t=1,p=1",
		"$argon2id$v=19$m=01,t=1,p=1", "$argon2id$v=19$m=1,t=99999999,p=1", "$argon2id$m=1,t=1,p=1", "$argon2id$v=19",
		"$argon2i$v=19$m=1,t=1,p=1", "$argon2id$v=19$m=1,t=1,p=1,a=1",
		"$scrypt$ln=17,r=8,p=16", "$scrypt$ln=18,r=8,p=1", "$scrypt$ln=1,r=9,p=1", "$scrypt$ln=1,r=1,p=17",
		"$scrypt$ln=1",
		"$pbkdf2-sha256$i=1000", "$pbkdf2-sha512$i=9999999,l=64", "$pbkdf2-sha256$29000", "$pbkdf2-sha256$29000,l=32",
		"$pbkdf2-sha256$i=999", "$pbkdf2-sha256$i=10000000", "$pbkdf2-sha256$i=1000,l=9",
		"$pbkdf2-sha256$i=1000,l=99,l=99",
		"$pbkdf2-sha256$i=i=1000", "$pbkdf2$1000", "$pbkdf2-sha256$v=1$1000",
		"$gh1$0123456789abcdef", "$gh1$0123456789abcde", "$gh1$0123456789abcdeF", "gh1$0123456789abcdef", "$$", "$a$b",
	} {
		all = append(all, scheme+salt+key)
	}
	for _, rest := range []string{
		"$" + long("s", 7) + key, "$" + long("s", 8) + key, "$" + long("s", 9) + key, "$" + long("s", 63) + key,
		"$" + long("s", 64) + key, salt + "$" + long("k", 19), salt + "$" + long("k", 20), salt + "$" + long("k", 21),
		salt + "$" + long("k", 87), salt + "$" + long("k", 88), salt + key + "=", salt + "$./+" + long("k", 40), salt,
		"$" + key,
		salt + key + "\x00", "$" + salt + key, salt + key + "$",
	} {
		all = append(all, "$pbkdf2-sha256$i=1000"+rest, "$gh1$0123456789abcdef"+rest,
			"$argon2id$v=19$m=131072,t=16,p=16"+rest)
	}
	longest := "$argon2id$v=19$m=131072,t=16,p=16$" + long("s", 63) + "$" + long("k", 87)
	return append(all, long(longest+"\n", 3)+longest, "$gh1$0123456789abcdef"+salt+key+"\n$2b$12$"+long("a", 53))
}

// headerFields returns headers within and beyond each bound.
func headerFields() (all []string) {
	long := strings.Repeat
	all = []string{
		"", "a", "a:", "a: ", "a:b", "a: b", "a:  b", "a: b ", "a: b\t", "a: b\r\nc: d", "a: b\nc: d", "a: b\n", "\na: b",
		"a: b\n\nc: d", ": b", " a: b", "A: b", "a b: c", "a\x00: b", "é: a", "a: é", "a: b\x00", "a: b\x7f", "a: b: c",
		"a: b\na: c", "link: b\nlink: c", "location: /b", "09-az-: ~", `a(: b`, `a": b`, "a\\: b",
		long("n", limits.MaxHeaderName) + ": v", long("n", limits.MaxHeaderName+1) + ": v",
		"a: " + long("b", limits.MaxHeaders-3), "a: " + long("b", limits.MaxHeaders-2), long("a: b\n", 2000),
		long("link: a\n", limits.MaxHeaderLines-1) + "link: a", long("link: a\n", limits.MaxHeaderLines) + "link: a",
		"cache-control: public", "last-modified: Sun, 06 Nov 1994 08:49:37 GMT",
		"last-modified: Sun, 06 Nov 1994 08:49:37 GMT+1", "last-modified: Sunday, 06-Nov-94 08:49:37 GMT",
		"last-modified: sun, 06 Nov 1994 08:49:37 GMT", "last-modified: Sun, 6 Nov 1994 08:49:37 GMT",
	}
	for _, name := range []string{"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "proxy-a",
		"proxy", "content-length", "content-type", "content-encoding", "content-range", "accept-ranges", "etag", "age",
		"e-tag", "date", "vary", "cache-status", "set-cookie", "set-cookie2", "x-envoy-a", "x-accel-redirect",
		"x-gatehouse-a", "gatehouse-a", "gatehouse", "x-envoy", "content-language", "content-location", "expires", "etags",
		"a-proxy-b"} {
		all = append(all, name+": a")
		for _, mark := range "!#$%&'*+.^_`|~" { // of a token (RFC 9110, section 5.6.2)
			all = append(all, strings.ReplaceAll(name, "-", string(mark))+": a", name+string(mark)+": a")
		}
	}
	return all
}

// tagsOf returns n tags of the greatest length.
func tagsOf(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s%02d", strings.Repeat("t", limits.MaxTag-2), i))
	}
	return strings.Join(all, ",")
}

// TestScriptKeepsTheLimits writes records at and beyond each limit and form, by the script alone: it accepts exactly
// those that readers accept.
func TestScriptKeepsTheLimits(t *testing.T) {
	long := strings.Repeat
	bcrypt := "$2b$12$" + long("a", 53)
	object, device := contract.ObjectMember("/a"), contract.CredentialMember("d")
	names := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("%s%02d", long("p", limits.MaxPermissionName-2), i))
		}
		return strings.Join(all, ",")
	}
	labels := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("%s%02d=%s", long("a", contract.MaxLabelName-2), i, long("b", contract.MaxLabelValue)))
		}
		return strings.Join(all, ",")
	}
	type write struct {
		member contract.Member
		field  string
		value  string
	}
	var all []write
	for _, key := range []string{
		"/" + long("a", limits.MaxKey-1), "/" + long("a", limits.MaxKey), "a", "/\x7f", "/a b",
		"/é", "/a?" + long("&", limits.MaxPairs-1), "/a?" + long("&", limits.MaxPairs),
		"/" + long("&", limits.MaxPairs), "/a?b?" + long("&", limits.MaxPairs), "@d/a", "@d", "@/a",
		"@d?/a", "@" + long("d", limits.MaxDeviceID) + "/a", "@" + long("d", limits.MaxDeviceID+1) + "/a", "@a,b/c", "/a\x00",
		"/a#de", "/#d", "/#", "/a?b#sr-latn-rs-x", "/#DE", "@#d/#de", "//a#de/", "/#de#en", "/#abcdefgh-12345678",
		"/#abcdefghi", "/#de-123456789", "/#1de", "/#d1", "/#de--b", "/#de-", "/#-de", "/#de?a",
	} {
		all = append(all, write{member: contract.ObjectMember(key)})
	}
	for _, id := range []string{long("d", limits.MaxDeviceID), long("d", limits.MaxDeviceID+1),
		"a/b", "a?b", "a,b", `a"b`, "a b", "-~@>.0", "é", "a\x00"} {
		all = append(all, write{member: contract.CredentialMember(id)})
	}
	for _, id := range []string{"/", "/a/", "//shop/", "//shop/a/", "#t", "//shop#a:B", "/%C3/", "/%c3/",
		"//shop/%c3/", "/a", "a/", "//shop", "//", "///", "///a/", "//Shop/", "//shop:h/", "//shop//a/", "@d/a/",
		"/a?b/", "/a#b/", "#", "#a b",
		"#a,b", "//#t", "//shop:h#t", "/a b/", "/é/", "/" + long("a", limits.MaxKey-2) + "/",
		"/" + long("a", limits.MaxKey-1) + "/", "//" + long("s", 64) + "/", "//" + long("s", 65) + "/", "#" + long("t", 64),
		"#" + long("t", 65), "/\x00/", "/\x7f/", "#/books/1", "//shop#//shop/%c3?b&a#t", "#/../a//b"} {
		all = append(all, write{member: contract.PurgeMember(id)})
	}
	for c := range 256 {
		tag := "a" + string([]byte{byte(c)})
		all = append(all, write{member: contract.PurgeMember("#" + tag)}, write{object, "tags", tag})
	}
	for _, w := range []struct {
		member contract.Member
		field  string
		values []string
	}{
		{object, "tags", []string{"", "a", "A,a,b.c:d-e_f", "b,a", "a,a", "a,", ",a", "a b", "é", long("t", 64),
			long("t", 65), tagsOf(contract.MaxTags), tagsOf(contract.MaxTags + 1), long("a,", 3000) + "a"}},
		{object, "hard", []string{"1"}},
		{device, "tags", []string{"a"}},
		{contract.PurgeMember("/"), "hard", []string{"1", "0", "x"}},
		{contract.PurgeMember("/"), "soft", []string{"1"}},
		{contract.PurgeMember("/"), "tags", []string{"a"}},
		{object, "etag", []string{`""`, `"a"`, "a", `W/"a"`, `"a b"`, `"` + long("e", limits.MaxETag-2) +
			`"`, `"` + long("e", limits.MaxETag-1) + `"`}},
		{object, "content-type", []string{"", "a", " ", "a ", " a", "a/b; c=d",
			"a\tb", "é", long("c", limits.MaxContentType), long("c", limits.MaxContentType+1)}},
		{object, "ttl", []string{"", "0", "1", "01", "-1", "1e3", "1.5", " 1", "9007199254740991",
			"9007199254740992", long("9", 40)}},
		{object, "body", []string{"", "\x00\n", long("b", limits.MaxBody), long("b", limits.MaxBody+1)}},
		{object, "body.gzip", []string{"", "\x00", long("b", limits.MaxBody), long("b", limits.MaxBody+1)}},
		{object, "body.br", []string{"", "\n", long("b", limits.MaxBody), long("b", limits.MaxBody+1)}},
		{object, "body.zstd", []string{"", "b", long("b", limits.MaxBody), long("b", limits.MaxBody+1)}},
		{object, "body.deflate", []string{"b"}},
		{object, "status", []string{"", "200", "404", "410", "303", "404 ", "0404", "999", "301"}},
		{object, "headers", headerFields()},
		{object, "hash", []string{bcrypt}},
		{object, long("f", 1000), []string{""}},
		{device, "hash", []string{
			bcrypt, bcrypt + "\n" + bcrypt, bcrypt + "\n", "\n" + bcrypt, long(bcrypt+"\n", 3) + bcrypt,
			long(bcrypt+"\n", 4) + bcrypt, "", "x", bcrypt + "a", bcrypt[1:],
			"$2a$04" + bcrypt[6:], "$2y$15" + bcrypt[6:], "$2x$12" + bcrypt[6:], "$2b$03" + bcrypt[6:],
			"$2b$16" + bcrypt[6:], bcrypt[:59] + "!",
		}},
		{device, "hash", hashesOfSchemes()},
		{device, "permissions", []string{
			"", "a", "b,a,b", "a,", ",a", "a b", "é", long("p", limits.MaxPermissionName),
			long("p", limits.MaxPermissionName+1), names(limits.MaxPermissions), names(limits.MaxPermissions + 1),
			long("a,", limits.MaxPermissions*2) + "a", long("a,", 3000) + "a",
		}},
		{device, "disabled", []string{"1", "0", "true", ""}},
		{device, "not-after", []string{"", "0", "1", "01", "9007199254740991", "9007199254740992"}},
		{device, "old-until", []string{"", "0", "1", "01", "9007199254740991", "9007199254740992"}},
		{device, "labels", []string{
			"", "a", "a=", "=a", "a=b=c", "A=b", "a b=c", "a=b,", ",a=b", "a=b,a=c", "b=,a=", "a=é", "a._-0=Z:._-9",
			long("a", contract.MaxLabelName) + "=" + long("b", contract.MaxLabelValue),
			long("a", contract.MaxLabelName+1) + "=", "a=" + long("b", contract.MaxLabelValue+1),
			labels(contract.MaxLabels), labels(contract.MaxLabels + 1), long("a=,", 3000) + "a=",
		}},
		{device, "body", []string{""}},
	} {
		for _, value := range w.values {
			all = append(all, write{w.member, w.field, value})
		}
	}
	onBoth(t, func(t *testing.T, s server) {
		check := func(name string, m contract.Member, fields map[string]string) {
			t.Helper()
			want, got := readable(m, fields), s.replaceRecord(t, m, fields)
			named := redis.HasErrorPrefix(got, "INVALID") || redis.HasErrorPrefix(got, "LIMIT")
			switch {
			case (want == nil) != (got == nil) || got != nil && !named:
				t.Errorf("%s: the script says %v, readers %v", name, got, want)
			case contract.ReasonOf(want) == contract.ReasonLimit &&
				regexp.MustCompile(`bytes|parameters`).MatchString(want.Error()) && !redis.HasErrorPrefix(got, "LIMIT"):
				t.Errorf("%s: got %v, want LIMIT", name, got)
			case got != nil && len(got.Error()) > 400:
				t.Errorf("%s: an error of %d bytes", name, len(got.Error()))
			}
		}
		complete := func(m contract.Member) map[string]string {
			switch m.Kind {
			case contract.KindPurge:
				return map[string]string{"hard": "1"}
			case contract.KindObject:
				return map[string]string{"etag": `"a"`, "content-type": "a", "body": "b"}
			}
			return map[string]string{"hash": bcrypt}
		}
		for _, w := range all {
			fields := complete(w.member)
			if w.field != "" {
				fields[w.field] = w.value
			}
			check(fmt.Sprintf("%.80q, %s of %d bytes, %.80q", w.member, w.field, len(w.value), w.value), w.member, fields)
		}
		for _, m := range []contract.Member{object, device, contract.PurgeMember("/")} {
			for field := range complete(m) {
				fields := complete(m)
				delete(fields, field)
				check(m.String()+" without "+field, m, fields)
				fields[contract.FieldDeleted] = "1"
				check(m.String()+", a tombstone with fields", m, fields)
			}
			check(m.String()+", a tombstone", m, map[string]string{contract.FieldDeleted: "1"})
		}
		for _, status := range []string{"301", "302", "303", "307", "308", "404", "410"} {
			for _, headers := range []string{"location: /b", "link: </>\nlocation: /b", "link: </>; title=location: /b"} {
				fields := complete(object)
				fields["status"], fields["headers"] = status, headers
				check("status "+status+" with "+headers, object, fields)
			}
		}
		check("a disabled device without a hash", device, map[string]string{"disabled": "1"})
	})
}

// TestLimitIsNamed: the errors of this package and of gatehousectl name the value and the limit.
func TestLimitIsNamed(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		fields := map[string]string{"etag": `"a"`, "content-type": "a", "body": strings.Repeat("b", limits.MaxBody+1)}
		_, err := s.p.writer.writeRecord(t.Context(), replace, contract.ObjectMember("/a"), fields)
		if want := "invalid: body of o:/a: 1048577 bytes, at most 1048576 are allowed"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if left := s.Keys(t.Context(), "*").Val(); !slices.Equal(left, []string{contract.Keyspace{}.ShardsKey()}) {
			t.Errorf("the refused write left %q", left)
		}
	})
}

// TestRevokeWithoutBounds revokes devices whose records somebody wrote by hand, without bounds: the event has none of
// that.
func TestRevokeWithoutBounds(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		large := strings.Repeat("x", 1<<20)
		many := map[string]string{"hash": "x"}
		for i := range 5000 { // more than a call in Lua takes
			many[fmt.Sprint("field", i)] = "x"
		}
		for id, fields := range map[string]map[string]string{"hash": {"hash": large},
			"unknown": {"hash": "x", "unknown": large}, "name": {"hash": "x", large: ""}, "many": many} {
			s.HSet(t.Context(), keys.CredentialKey(id), fields)
			next := s.events(t)
			if _, err := s.p.RevokeDevice(t.Context(), id); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			e, stored := next(), s.hash(t, contract.CredentialMember(id))
			if e.Fields[contract.FieldDisabled] != contract.DisabledRevoked || len(e.payload) > 1<<14 ||
				!maps.Equal(e.Fields, stored) {
				t.Errorf("%s: event of %d bytes, disabled %q, %d fields stored", id, len(e.payload),
					e.Fields[contract.FieldDisabled], len(stored))
			}
		}
	})
}
