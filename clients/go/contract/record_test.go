package contract

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/coding"
	"github.com/gatehouse/gatehouse/clients/go/limits"
)

const hash = "$2b$12$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234"

var (
	object = map[string]string{
		"version": "9", "published": "1735689600000", "etag": `"ab"`, "content-type": "text/plain",
		"ttl": "5000", "status": "308", "headers": "location: /b\nlink: </a>\nlink: </c>",
		"body": "hello", "body.br": "br", "body.gzip": "gz", "body.zstd": "zs",
	}
	credential = map[string]string{
		"version": "9007199254740991", "published": "0", "hash": hash + "\n" + strings.Replace(hash, "$2b$12", "$2y$04", 1),
		"permissions": "a,b", "not-after": "1", "old-until": "2", "labels": "fleet=eu,note=", "disabled": "1",
	}
	tombstone = map[string]string{"version": "2", "published": "3", "deleted": "1"}
)

func TestObjectRoundTrip(t *testing.T) {
	tests := []struct {
		name   string
		fields map[string]string
		want   Object
	}{
		{"tombstone", tombstone, Object{Version: 2, PublishedMS: 3, Deleted: true}},
		{"all fields", object, Object{
			Version: 9, PublishedMS: 1735689600000, ETag: `"ab"`, ContentType: "text/plain", TTLMS: 5000,
			Status: 308, Headers: "location: /b\nlink: </a>\nlink: </c>",
			Bodies: []Body{{coding.Identity, []byte("hello")}, {coding.Gzip, []byte("gz")}, {coding.Brotli, []byte("br")},
				{coding.Zstd, []byte("zs")}},
		}},
		{"empty body", map[string]string{"version": "1", "published": "1", "etag": `""`, "content-type": "a", "body": ""},
			Object{
				Version: 1, PublishedMS: 1, ETag: `""`, ContentType: "a", Bodies: []Body{{coding.Identity, []byte{}}},
			}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseObject(test.fields)
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Fatalf("got %+v, %v; want %+v", got, err, test.want)
			}
			if fields := got.Fields(); !maps.Equal(fields, test.fields) {
				t.Errorf("Fields() = %v, want %v", fields, test.fields)
			}
		})
	}
}

func TestCredentialRoundTrip(t *testing.T) {
	tests := []struct {
		name      string
		fields    map[string]string
		published int64
		want      Credential
	}{
		{"tombstone", tombstone, 3, Credential{Version: 2, Deleted: true}},
		{"all fields", credential, 0, Credential{
			Version: 1<<53 - 1, Disabled: true, Permissions: []string{"a", "b"}, NotAfterMS: 1,
			Hashes:     []string{hash, strings.Replace(hash, "$2b$12", "$2y$04", 1)},
			OldUntilMS: 2, Labels: map[string]string{"fleet": "eu", "note": ""},
		}},
		{"least", map[string]string{"version": "1", "published": "1", "hash": hash}, 1,
			Credential{Version: 1, Hashes: []string{hash}}},
		{"disabled without a hash", map[string]string{"version": "1", "published": "1", "disabled": "1"},
			1, Credential{Version: 1, Disabled: true}},
		{"revoked", map[string]string{"version": "1", "published": "1", "disabled": "revoked"},
			1, Credential{Version: 1, Disabled: true, Revoked: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.want.PublishedMS = test.published
			got, err := ParseCredential(test.fields)
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Fatalf("got %+v, %v; want %+v", got, err, test.want)
			}
			if fields := got.Fields(); !maps.Equal(fields, test.fields) {
				t.Errorf("Fields() = %v, want %v", fields, test.fields)
			}
		})
	}
}

func TestPermissionsNormalised(t *testing.T) {
	fields := maps.Clone(credential)
	fields["permissions"] = "b,a,b"
	got, err := ParseCredential(fields)
	if want := []string{"a", "b"}; err != nil || !reflect.DeepEqual(got.Permissions, want) {
		t.Errorf("got %v, %v; want %v", got.Permissions, err, want)
	}
}

// absent as a value removes the field.
const absent = "\x00absent"

type refusal struct {
	field, value string
	reason       Reason
}

// refused sets one field of good and expects an error of parse with the field and the reason.
func refused(t *testing.T, good map[string]string, tests []refusal, parse func(map[string]string) error) {
	t.Helper()
	for _, test := range tests {
		fields := maps.Clone(good)
		fields[test.field] = test.value
		if test.value == absent {
			delete(fields, test.field)
		}
		err := parse(fields)
		if err == nil || ReasonOf(err) != test.reason || !strings.Contains(err.Error(), test.field) {
			t.Errorf("%s=%.40q: error %v (reason %q), want reason %q and the field's name", test.field,
				test.value, err, ReasonOf(err), test.reason)
		}
		if err != nil && (len(err.Error()) > 300 || strings.Contains(err.Error(), "ABCDEFGHIJ")) {
			t.Errorf("%s: the error shows too much: %v", test.field, err)
		}
	}
}

func TestParseObjectRefuses(t *testing.T) {
	refused(t, object, []refusal{
		{"version", absent, ReasonMissing},
		{"version", "", ReasonMalformed},
		{"version", "0", ReasonLimit},
		{"version", "01", ReasonMalformed},
		{"version", "1.5", ReasonMalformed},
		{"version", "1e3", ReasonMalformed},
		{"version", "-1", ReasonMalformed},
		{"version", "9007199254740992", ReasonLimit},
		{"published", absent, ReasonMissing},
		{"published", "now", ReasonMalformed},
		{"deleted", "1", ReasonConflict},
		{"deleted", "true", ReasonMalformed},
		{"etag", absent, ReasonMissing},
		{"etag", "ab", ReasonMalformed},
		{"etag", `W/"ab"`, ReasonMalformed},
		{"content-type", absent, ReasonMissing},
		{"content-type", "a\r\nset-cookie: b", ReasonMalformed},
		{"content-type", "text/plain ", ReasonMalformed},
		{"ttl", "0", ReasonLimit},
		{"ttl", "5s", ReasonMalformed},
		{"status", "200", ReasonMalformed},
		{"status", "0308", ReasonMalformed},
		{"status", "303", ReasonMalformed},
		{"status", "", ReasonMalformed},
		{"headers", absent, ReasonMissing}, // location
		{"headers", "", ReasonMalformed},
		{"headers", "link: </a>", ReasonMissing},
		{"headers", "location", ReasonMalformed},
		{"headers", "location:/b", ReasonMalformed},
		{"headers", "Location: /b", ReasonMalformed},
		{"headers", "location: ", ReasonMalformed},
		{"headers", "location: /b ", ReasonMalformed},
		{"headers", "location: /b\r", ReasonMalformed},
		{"headers", "location: /b\n", ReasonMalformed},
		{"headers", "location: /b\n\nset-cookie: a", ReasonMalformed},
		{"headers", "location: /b\nset-cookie: a=b", ReasonConflict},
		{"headers", "location: /b\nproxy-status: a", ReasonConflict},
		{"headers", "location: /b\ne-tag: a", ReasonConflict},
		{"headers", "location: /b\nx_a: b", ReasonMalformed},
		{"headers", "location: /b\nx.a: b", ReasonMalformed},
		{"headers", "location: /b\nlocation: /c", ReasonConflict},
		{"headers", "location: /b\nlast-modified: yesterday", ReasonMalformed},
		{"headers", "location: /b\n" + strings.Repeat("a", limits.MaxHeaderName+1) + ": b", ReasonMalformed},
		{"headers", "location: /b" + strings.Repeat("\nlink: a", limits.MaxHeaderLines), ReasonLimit},
		{"headers", "location: /" + strings.Repeat("b", limits.MaxHeaders), ReasonLimit},
		{"body", absent, ReasonMissing},
		{"body", strings.Repeat("x", limits.MaxBody+1), ReasonLimit},
		{"body.gzip", "", ReasonMalformed},
		{"body.zstd", strings.Repeat("x", limits.MaxBody+1), ReasonLimit},
		{"body.lz4", "x", ReasonUnknown},
		{"hash", hash, ReasonUnknown},
	}, func(fields map[string]string) error {
		_, err := ParseObject(fields)
		return err
	})
}

// TestLocation: location comes with a redirect, and only with one.
func TestLocation(t *testing.T) {
	for status, ok := range map[string]bool{"301": true, "302": true, "307": true, "308": true, "404": false,
		"410": false, absent: false} {
		fields := maps.Clone(object)
		fields["status"] = status
		if status == absent {
			delete(fields, "status")
		}
		if _, err := ParseObject(fields); (err == nil) != ok || err != nil && ReasonOf(err) != ReasonConflict {
			t.Errorf("status %q: got %v", status, err)
		}
	}
}

func TestParseCredentialRefuses(t *testing.T) {
	enabled := maps.Clone(credential)
	delete(enabled, "disabled")
	refused(t, enabled, []refusal{
		{"version", absent, ReasonMissing},
		{"deleted", "1", ReasonConflict},
		{"disabled", "0", ReasonMalformed},
		{"disabled", "", ReasonMalformed},
		{"disabled", "Revoked", ReasonMalformed},
		{"hash", absent, ReasonMissing},
		{"hash", "", ReasonMalformed},
		{"hash", hash + "\n", ReasonMalformed},
		{"hash", hash[1:], ReasonMalformed},
		{"hash", "ABCDEFGHIJ", ReasonMalformed},
		{"hash", strings.Replace(hash, "$2b$", "$2x$", 1), ReasonMalformed},
		{"hash", strings.Replace(hash, "$12$", "$03$", 1), ReasonLimit},
		{"hash", strings.Replace(hash, "$12$", "$16$", 1), ReasonLimit},
		{"hash", strings.Replace(hash, "$12$", "$1x$", 1), ReasonMalformed},
		{"hash", strings.Replace(hash, "01234", "012=4", 1), ReasonMalformed},
		{"hash", strings.Repeat(hash+"\n", 4) + hash, ReasonLimit},
		{"permissions", "a,,b", ReasonMalformed},
		{"permissions", "a b", ReasonMalformed},
		{"permissions", strings.Repeat("a", 65), ReasonMalformed},
		{"permissions", strings.Repeat("a,", 5000), ReasonLimit},
		{"not-after", "0", ReasonLimit},
		{"not-after", "2030-01-01T00:00:00Z", ReasonMalformed},
		{"old-until", "0", ReasonLimit},
		{"labels", "", ReasonMalformed},
		{"labels", "fleet", ReasonMalformed},
		{"labels", "Fleet=eu", ReasonMalformed},
		{"labels", "fleet=e u", ReasonMalformed},
		{"labels", "a=,a=", ReasonConflict},
		{"labels", "a" + strings.Repeat("b", MaxLabelName) + "=", ReasonMalformed},
		{"labels", "a=" + strings.Repeat("b", MaxLabelValue+1), ReasonMalformed},
		{"labels", "a=,b=,c=,d=,e=,f=,g=,h=,i=,j=,k=,l=,m=,n=,o=,p=,q=", ReasonLimit},
		{"not-before", "1", ReasonUnknown},
		{"etag", `"a"`, ReasonUnknown},
	}, func(fields map[string]string) error {
		_, err := ParseCredential(fields)
		return err
	})
}
