package limits

import (
	"strings"
	"testing"
)

// check runs a table of values against one of the Valid functions.
func check(t *testing.T, valid func(string) bool, good, bad map[string]string) {
	t.Helper()
	for name, s := range good {
		if !valid(s) {
			t.Errorf("%s: got %.80q refused, want valid", name, s)
		}
	}
	for name, s := range bad {
		if valid(s) {
			t.Errorf("%s: got %.80q valid, want refused", name, s)
		}
	}
}

// allowed returns the bytes that valid accepts within an otherwise valid value.
func allowed(valid func(string) bool, before, after string) string {
	var s strings.Builder
	for c := range 256 {
		if valid(before + string([]byte{byte(c)}) + after) {
			s.WriteByte(byte(c))
		}
	}
	return s.String()
}

// visible returns visible ASCII, 0x21 to 0x7e, without the bytes in except.
func visible(except string) string {
	var s strings.Builder
	for c := byte(0x21); c <= 0x7e; c++ {
		if strings.IndexByte(except, c) < 0 {
			s.WriteByte(c)
		}
	}
	return s.String()
}

func TestBytesAllowed(t *testing.T) {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	const alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_" + letters
	tests := []struct {
		name          string
		valid         func(string) bool
		before, after string
		want          string
	}{
		{"device id", ValidDeviceID, "a", "b", visible(`/?,"`)},
		{"device id, first", ValidDeviceID, "", "b", visible(`/?,"`)},
		{"device id, last", ValidDeviceID, "a", "", visible(`/?,"`)},
		{"key", ValidKey, "/a", "b", visible("#")},
		{"key, first", ValidKey, "", "", "/"},
		{"key, last", ValidKey, "/a", "", visible("#")},
		{"key, in a device", ValidKey, "@a", "b/c", visible(`?,"`)},
		{"key, after a device", ValidKey, "@a/", "c", visible("/#")},
		{"key, in a virtual host", ValidKey, "//a", "b/c", "-/0123456789:_abcdefghijklmnopqrstuvwxyz"},
		{"key, in a host", ValidKey, "//a:b", "c/d", "-./0123456789_abcdefghijklmnopqrstuvwxyz"},
		{"key, after a host", ValidKey, "//a:b/", "c", visible("#")},
		{"key, in a language", ValidKey, "/#a", "b", letters},
		{"key, in a subtag", ValidKey, "/#aa-a", "b", "-0123456789" + letters},
		{"virtual host", ValidVirtualHost, "a", "b", "-0123456789_abcdefghijklmnopqrstuvwxyz"},
		{"host", ValidHost, "a", "b", "-.0123456789_abcdefghijklmnopqrstuvwxyz"},
		{"host, address", ValidHost, "[:", ":]", ".0123456789:abcdef"},
		{"entity-tag", ValidETag, `"a`, `b"`, visible(`"`)},
		{"entity-tag, first", ValidETag, "", `a"`, `"`},
		{"entity-tag, last", ValidETag, `"a`, "", `"`},
		{"content type", ValidContentType, "text/", "x", " " + visible("")},
		{"content type, first", ValidContentType, "", "/x", visible("")},
		{"content type, last", ValidContentType, "text/", "", visible("")},
		{"permission", ValidPermission, "a", "b", "-." + alphanumeric[:10] + ":" + alphanumeric[10:]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := allowed(tt.valid, tt.before, tt.after); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestValidDeviceID(t *testing.T) {
	check(t, ValidDeviceID, map[string]string{
		"one byte": "d", "sample": "demo-device", "an address": "urn:dev:mac:0024befffe804ff1",
		"punctuation": "!#$%&'()*+-.:;<=>@[]^_`{|}~", "longest": strings.Repeat("d", MaxDeviceID),
	}, map[string]string{
		"empty": "", "over the limit": strings.Repeat("d", MaxDeviceID+1), "a list": "a,b", "UTF-8": "gerät",
		"space inside": "a b", "space around": " a", "tab": "a\t", "new line": "a\r\nx: y", "NUL": "a\x00",
	})
}

func TestValidSecret(t *testing.T) {
	check(t, ValidSecret, map[string]string{
		"one byte": "s", "blank inside": "a b", "UTF-8": "schlüssel", "longest": strings.Repeat("s", MaxSecret),
	}, map[string]string{
		"empty": "", "over the limit": strings.Repeat("s", MaxSecret+1), "blank before": " s",
		"blank after": "s ", "blank": " ",
		"tab": "s\ts", "new line": "s\n", "NUL": "s\x00s", "DEL": "s\x7f", "byte order mark": "\ufeffs",
	})
}

func TestValidKey(t *testing.T) {
	id := strings.Repeat("d", MaxDeviceID)
	check(t, ValidKey, map[string]string{
		"root": "/", "path": "/v1/products/42", "query": "/v1/products/42?lang=de", "percent": "/a%20b", "double slash": "/a//b",
		"virtual host": "//shop/v1", "virtual host, root": "//shop/", "virtual host, double slash": "//shop//v1",
		"host of a virtual host": "//shop:a.shop.example/v1", "host": "//:a_b.example./v1", "address": "//:[::1]/v1",
		"device of a virtual host": "@d//shop:a/v1", "long name": "//" + strings.Repeat("s", MaxVirtualHost) + "/",
		"long host": "//s:" + strings.Repeat("h", MaxHost) + "/", "colon in a path": "/:a/b",
		"longest": "/" + strings.Repeat("k", MaxKey-1), "device": "@demo-device/v1/me", "device, root": "@d/",
		"longest device": "@" + id + "/", "longest device and key": "@" + id + "/" +
			strings.Repeat("k", MaxKey-MaxDeviceID-2),
		"@ in a path": "/@d", "@ in a device": "@@/x", "# in a device": "@#/x", "language": "/a?x=1#en-gb",
		"language of a root": "//shop:a/#de", "long language": "/#abcdefgh-12345678-x",
	}, map[string]string{
		"device with a question mark": "@d?/x", "empty": "", "no slash": "v1", "query only": "?a=b",
		"star": "*", "URL": "http://host/", "language only": "#de",
		"over the limit": "/" + strings.Repeat("k", MaxKey),
		"at":             "@", "no device": "@/x", "device without a path": "@demo-device", "device over its limit": "@" + id + "d" + "/",
		"device and key over the limit": "@" + id + "/" + strings.Repeat("k", MaxKey-MaxDeviceID-1),
		"device with a comma":           `@a,b/x`, "device with a quote": `@a"b/x`, "device with a query only": "@d?x",
		"slashes": "//", "three": "///x", "virtual host without a path": "//shop", "with a query": "//shop?x/y",
		"upper case": "//Shop/x", "no host": "//shop:/x", "only a colon": "//:/x", "host in upper case": "//shop:A/x",
		"port": "//shop:a:80/x", "open address": "//:[::1/x", "empty address": "//:[]/x", "zone": "//:[fe80::1%25a]/x",
		"comma": "//:a,b/x", "device, no path": "@d//shop", "device, slashes": "@d//", "device after it": "//shop@d/x",
		"name over its limit": "//" + strings.Repeat("s", MaxVirtualHost+1) + "/",
		"host over its limit": "//:" + strings.Repeat("h", MaxHost+1) + "/", "escape": "//sh%6Fp/x",
		"language in upper case": "/a#DE", "two languages": "/a#de#en", "no language": "/a#", "empty subtag": "/a#de-",
		"letter as language": "/a#d", "long subtag": "/a#abcdefghi", "language without a path": "//shop#de/x",
		"digit first": "/a#d1", "long second subtag": "/a#de-123456789", "query in a language": "/a#de?x",
		"space": "/a b", "new line": "/a\n", "NUL": "/a\x00", "UTF-8": "/gerät", "space in front": " /a",
	})
}

func TestValidETag(t *testing.T) {
	check(t, ValidETag, map[string]string{
		"sample": `"5d41402abc4b2a76b9719d911017c592"`, "empty": `""`, "with a comma": `"a,b"`,
		"a weak one's letters": `"W/"`, "longest": `"` + strings.Repeat("e", MaxETag-2) + `"`,
	}, map[string]string{
		"none": "", "one quote": `"`, "no quotes": "abc", "weak": `W/"abc"`, "star": "*", "list": `"a", "b"`,
		"list without a space": `"a","b"`,
		"over the limit":       `"` + strings.Repeat("e", MaxETag-1) + `"`, "open": `"abc`, "unopened": `abc"`,
		"space around": ` "a"`, "new line": "\"a\n\"", "UTF-8": `"é"`,
	})
}

func TestValidContentType(t *testing.T) {
	check(t, ValidContentType, map[string]string{
		"sample": "application/json", "parameter": `text/plain; charset="utf-8"`,
		"longest": strings.Repeat("c", MaxContentType), "a byte": "c",
	}, map[string]string{
		"none": "", "over the limit": strings.Repeat("c", MaxContentType+1), "new line": "text/plain\r\nx: y",
		"tab": "text/plain;\tq=1", "UTF-8": "text/é",
		"a blank": " ", "a blank before": " text/plain", "a blank behind": "text/plain ",
	})
}

func TestValidPermission(t *testing.T) {
	check(t, ValidPermission, map[string]string{
		"sample": "telemetry.write", "all kinds": "aZ09._:-", "longest": strings.Repeat("p", MaxPermissionName),
	}, map[string]string{
		"none": "", "over the limit": strings.Repeat("p", MaxPermissionName+1), "list": "a,b", "space": "a b",
		"star": "*", "slash": "a/b",
	})
}
