package publish

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

var update = flag.Bool("update", false, "write what this package does into vectors.json")

const vectorsFile = "../../vectors.json"

// vectors are what the clients of all languages must do alike. README.md in clients describes the file.
type vectors struct {
	Keys    []keyVector    `json:"keys"`
	Shards  []shardVector  `json:"shards"`
	Secrets []secretVector `json:"secrets"`
	Peppers []pepperVector `json:"peppers"`
	Cases   []caseVector   `json:"cases"`
}

type keyVector struct {
	Key       string `json:"key"`
	Canonical string `json:"canonical,omitempty"`
	Error     string `json:"error,omitempty"`
}

type shardVector struct {
	ID     string `json:"id"`
	Shards int    `json:"shards"`
	Shard  int    `json:"shard"`
}

type secretVector struct {
	Secret    string `json:"secret"`
	Generated bool   `json:"generated"`
	APIKey    string `json:"api_key_of_truck,omitempty"`
}

type pepperVector struct {
	Pepper  string `json:"pepper"`
	ID      string `json:"id,omitempty"`
	Error   string `json:"error,omitempty"`
	Secret  string `json:"secret,omitempty"`
	Hash    string `json:"hash,omitempty"`
	Matches bool   `json:"matches,omitempty"`
}

// caseVector runs in a new namespace.
type caseVector struct {
	Name    string                    `json:"name"`
	Shards  int                       `json:"shards,omitempty"`
	Steps   []stepVector              `json:"steps"`
	Records map[string]map[string]any `json:"records"`
}

type objectVector struct {
	Key         string `json:"key,omitempty"`
	Body        string `json:"body,omitempty"`
	Times       int    `json:"times,omitempty"` // Body is repeated
	BodyBase64  string `json:"body_base64,omitempty"`
	ContentType string `json:"content_type,omitempty"`
	ETag        string `json:"etag,omitempty"`
	TTLMS       int64  `json:"ttl_ms,omitempty"`
	Status      int    `json:"status,omitempty"`
	// Headers are names and values.
	Headers   [][2]string `json:"headers,omitempty"`
	Tags      []string    `json:"tags,omitempty"`
	Version   uint64      `json:"version,omitempty"`
	IfVersion uint64      `json:"if_version,omitempty"`
	IfAbsent  bool        `json:"if_absent,omitempty"`
}

type stepVector struct {
	Op string `json:"op"`
	objectVector
	Objects []objectVector `json:"objects,omitempty"`
	Keys    []string       `json:"keys,omitempty"`

	ID          string             `json:"id,omitempty"`
	Secret      string             `json:"secret,omitempty"`
	Hashes      []string           `json:"hashes,omitempty"`
	Permissions []string           `json:"permissions,omitempty"`
	Labels      map[string]*string `json:"labels,omitempty"`
	NotAfterMS  *int64             `json:"not_after_ms,omitempty"` // 0: never
	Disabled    *bool              `json:"disabled,omitempty"`
	Cost        int                `json:"cost,omitempty"`
	Pepper      string             `json:"pepper,omitempty"`
	Keep        bool               `json:"keep,omitempty"` // replaces no other record
	OverlapMS   int64              `json:"overlap_ms,omitempty"`
	EndOverlap  bool               `json:"end_overlap,omitempty"`
	Add         []string           `json:"add,omitempty"`
	Remove      []string           `json:"remove,omitempty"`
	Force       bool               `json:"force,omitempty"`
	Name        string             `json:"name,omitempty"`
	Value       string             `json:"value,omitempty"`
	Member      string             `json:"member,omitempty"`
	Tag         string             `json:"tag,omitempty"`
	Prefix      string             `json:"prefix,omitempty"`
	All         bool               `json:"all,omitempty"`
	VirtualHost string             `json:"virtual_host,omitempty"`
	Soft        bool               `json:"soft,omitempty"`

	Want    *outcome  `json:"want,omitempty"`
	Results []outcome `json:"results,omitempty"`
}

// outcome of a write or read: a version, or an error. A version that is a time is 0.
type outcome struct {
	Version uint64 `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

// TestVectors runs the file that the clients of all languages run.
func TestVectors(t *testing.T) {
	file, err := os.ReadFile(vectorsFile)
	require.NoError(t, err)
	var want vectors
	decoder := json.NewDecoder(bytes.NewReader(file))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&want))
	s := serverAt(t, redistest.Start(t))
	got := want
	got.pure()
	got.Cases = slices.Clone(want.Cases)
	for i := range got.Cases {
		got.Cases[i] = runCase(t, s, want.Cases[i], fmt.Sprint("case-", i))
	}
	text := got.format(t)
	if *update {
		require.NoError(t, os.WriteFile(vectorsFile, text, 0o644))
		return
	}
	lines := strings.Split(string(file), "\n")
	for i, line := range strings.Split(string(text), "\n") {
		if i >= len(lines) || line != lines[i] {
			t.Fatalf("line %d of %s: this package has\n%s\nwith -update it writes the file", i+1, vectorsFile, line)
		}
	}
	if !bytes.Equal(text, file) {
		t.Fatalf("%s has more than this package", vectorsFile)
	}
}

// pure fills in what needs no Redis.
func (v *vectors) pure() {
	v.Keys, v.Shards = slices.Clone(v.Keys), slices.Clone(v.Shards)
	v.Secrets, v.Peppers = slices.Clone(v.Secrets), slices.Clone(v.Peppers)
	for i, k := range v.Keys {
		canonical, err := canonicalKey(k.Key)
		v.Keys[i].Canonical, v.Keys[i].Error = canonical, kindOf(err)
	}
	for i, s := range v.Shards {
		v.Shards[i].Shard = contract.Shards(s.Shards).Of(s.ID)
	}
	for i, s := range v.Secrets {
		v.Secrets[i].Generated = contract.Generated(s.Secret)
		v.Secrets[i].APIKey, _ = apikey.Of("truck", s.Secret)
	}
	for i, p := range v.Peppers {
		pepper, err := contract.NewPepper([]byte(p.Pepper))
		v.Peppers[i].ID, v.Peppers[i].Error = pepper.ID, ""
		if err != nil {
			v.Peppers[i].Error = kindOf(ErrInvalid)
			continue
		}
		v.Peppers[i].Matches = pepper.Matches(p.Hash, p.Secret)
	}
}

func kindOf(err error) string {
	for kind, is := range map[string]error{"stale": ErrStale, "not_found": ErrNotFound, "invalid": ErrInvalid,
		"exists": ErrExists, "full": ErrFull, "corrupt": ErrCorrupt} {
		if errors.Is(err, is) {
			return kind
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func outcomeOf(version uint64, err error) outcome {
	if version%(1<<52) > 1_600_000_000_000 { // a time
		version = 0
	}
	return outcome{Version: version, Error: kindOf(err)}
}

func runCase(t *testing.T, s server, c caseVector, namespace string) caseVector {
	t.Helper()
	p := New(s.Client, Shards(max(c.Shards, 1)), Namespace(namespace))
	c.Steps = slices.Clone(c.Steps)
	for i := range c.Steps {
		step := &c.Steps[i]
		step.Want, step.Results = nil, nil
		if many := step.runMany(t, p); many != nil {
			for _, r := range many {
				step.Results = append(step.Results, outcomeOf(r.Version, r.Err))
			}
			continue
		}
		version, err := step.run(t, p)
		o := outcomeOf(version, err)
		step.Want = &o
	}
	c.Records = map[string]map[string]any{}
	for i := range max(c.Shards, 1) {
		keys := p.keyspace.Keys(i)
		for _, member := range s.ZRange(t.Context(), keys.LogKey(), 0, -1).Val() {
			m, err := contract.ParseMember(member)
			require.NoError(t, err)
			if record := s.HGetAll(t.Context(), keys.RecordKey(m)).Val(); len(record) > 0 {
				c.Records[member] = c.expect(t, record)
			}
		}
	}
	return c
}

func (o objectVector) object(t *testing.T) Object {
	t.Helper()
	body := []byte(strings.Repeat(o.Body, max(o.Times, 1)))
	if o.BodyBase64 != "" {
		var err error
		if body, err = base64.StdEncoding.DecodeString(o.BodyBase64); err != nil {
			t.Fatal(err)
		}
	}
	object := Object{Key: o.Key, Body: body, ContentType: o.ContentType, ETag: o.ETag,
		TTL: time.Duration(o.TTLMS) * time.Millisecond, Status: o.Status, Tags: o.Tags, Version: o.Version,
		IfVersion: o.IfVersion, IfAbsent: o.IfAbsent}
	for _, h := range o.Headers {
		object.Headers = append(object.Headers, Header{Name: h[0], Value: h[1]})
	}
	return object
}

// runMany returns nil for steps of a single record.
func (s stepVector) runMany(t *testing.T, p *Publisher) (results []Result) {
	t.Helper()
	switch s.Op {
	case "put_many":
		var objects []Object
		for _, o := range s.Objects {
			objects = append(objects, o.object(t))
		}
		return p.PutAll(t.Context(), objects)
	case "delete_many":
		return p.DeleteAll(t.Context(), s.Keys)
	}
	return results
}

func (s stepVector) run(t *testing.T, p *Publisher) (version uint64, err error) {
	t.Helper()
	ctx := t.Context()
	var receipt Receipt
	var pepper *contract.Pepper
	if s.Pepper != "" {
		made, err := contract.NewPepper([]byte(s.Pepper))
		require.NoError(t, err)
		pepper = &made
	}
	switch s.Op {
	case "put":
		receipt, err = p.Put(ctx, s.object(t))
	case "get":
		o, err := p.Get(ctx, s.Key)
		return o.Version, err
	case "delete":
		receipt, err = p.Delete(ctx, s.Key, s.Version)
	case "purge":
		u := Purge{Tag: s.Tag, Prefix: s.Prefix, VirtualHost: s.VirtualHost, Soft: s.Soft}
		if s.All {
			u.Prefix = "/"
		}
		_, err = p.Purge(ctx, u)
	case "put_device":
		d := Device{ID: s.ID, Secret: s.Secret, Hashes: s.Hashes, Permissions: s.Permissions, Version: s.Version,
			Cost: s.Cost, Pepper: pepper, Disabled: s.Disabled != nil && *s.Disabled, Labels: map[string]string{}}
		for name, value := range s.Labels {
			d.Labels[name] = *value
		}
		if s.NotAfterMS != nil {
			d.NotAfter = time.UnixMilli(*s.NotAfterMS)
		}
		if s.Keep {
			result := p.AddDevices(ctx, []Device{d}, false)[0]
			return result.Version, result.Err
		}
		receipt, err = p.PutDevice(ctx, d)
	case "get_device":
		c, err := p.GetDevice(ctx, s.ID)
		return c.Version, err
	case "rotate_device":
		receipt, err = p.RotateDevice(ctx, Rotation{ID: s.ID, Secret: s.Secret,
			Overlap: time.Duration(s.OverlapMS) * time.Millisecond, Version: s.Version, Cost: s.Cost, Pepper: pepper})
	case "set_device":
		receipt, err = p.ChangeDevice(ctx, s.ID, s.Version, func(c *contract.Credential) error {
			s.change(c)
			return nil
		})
	case "revoke_device":
		if s.Force {
			receipt, err = p.ForceRevokeDevice(ctx, s.ID)
		} else {
			receipt, err = p.RevokeDevice(ctx, s.ID)
		}
	case "delete_device":
		receipt, err = p.DeleteDevice(ctx, s.ID, s.Force)
	case "invalidate_device":
		receipt, err = p.InvalidateDevice(ctx, s.ID)
	case "invalidate_label":
		receipt, err = p.InvalidateLabel(ctx, s.Name, s.Value)
	case "invalidate_all":
		receipt, err = p.InvalidateAll(ctx)
	case "evict": // the record, not its entry in the log
		m, parseErr := contract.ParseMember(s.Member)
		if parseErr != nil {
			t.Fatal(parseErr)
		}
		err = p.client.Del(ctx, p.keyspace.KeysOf(m.ID).RecordKey(m)).Err()
	default:
		t.Fatalf("no operation %q", s.Op)
	}
	return receipt.Version, err
}

// change is what gatehousectl device set does.
func (s stepVector) change(c *contract.Credential) {
	c.Permissions = slices.DeleteFunc(append(c.Permissions, s.Add...), func(name string) bool {
		return slices.Contains(s.Remove, name)
	})
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	for name, value := range s.Labels {
		if delete(c.Labels, name); value != nil {
			c.Labels[name] = *value
		}
	}
	if s.NotAfterMS != nil {
		c.NotAfterMS = *s.NotAfterMS
	}
	if s.Disabled != nil {
		c.Disabled, c.Revoked = *s.Disabled, c.Revoked && *s.Disabled
	}
	if s.EndOverlap {
		c.Hashes, c.OldUntilMS = c.Hashes[:1], 0
	}
}

// expect returns the file's form of a record: no version and time, names for encodings, secrets for hashes, a length
// for the end of an overlap, the SHA-256 for large and binary values.
func (c caseVector) expect(t *testing.T, record map[string]string) map[string]any {
	t.Helper()
	want := map[string]any{}
	var codings []string
	for field, value := range record {
		switch {
		case field == contract.FieldVersion || field == contract.FieldPublished || field == contract.FieldSeq:
		case strings.HasPrefix(field, "body."):
			if decoded := decoded(t, field, value); decoded != record[contract.FieldBody] {
				t.Errorf("%s: decodes to %d bytes that are not the body", field, len(decoded))
			}
			codings = append(codings, field)
		case field == contract.FieldHash:
			want[field] = c.secretsOf(t, value)
		case field == contract.FieldOldUntil:
			want[field] = c.overlapOf(t, value)
		case len(value) > 256 || !utf8.ValidString(value):
			sum := sha256.Sum256([]byte(value))
			want[field] = map[string]string{"sha256": hex.EncodeToString(sum[:])}
		default:
			want[field] = value
		}
	}
	if codings != nil {
		slices.Sort(codings)
		want["codings"] = codings
	}
	return want
}

// secretsOf returns, for each hash, the hash itself if a step gives the hash, otherwise scheme and secret.
func (c caseVector) secretsOf(t *testing.T, hashes string) (lines []string) {
	t.Helper()
	for _, hash := range strings.Split(hashes, "\n") {
		line := hash
		for _, step := range c.Steps {
			var pepper *contract.Pepper
			if made, err := contract.NewPepper([]byte(step.Pepper)); err == nil {
				pepper = &made
			}
			if step.Secret != "" && !slices.Contains(step.Hashes, hash) && Matches(hash, step.Secret, pepper) {
				parsed, _ := contract.ParseHash(hash)
				line = fmt.Sprintf("%s of %s", parsed, step.Secret)
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// overlapOf returns the length of the overlap that began now.
func (c caseVector) overlapOf(t *testing.T, untilMS string) any {
	t.Helper()
	until, err := strconv.ParseInt(untilMS, 10, 64)
	require.NoError(t, err)
	for _, step := range c.Steps {
		end := time.Now().UnixMilli() + step.OverlapMS
		if step.OverlapMS > 0 && end-60_000 < until && until <= end {
			return map[string]int64{"in_ms": step.OverlapMS}
		}
	}
	t.Fatalf("old-until %d is the end of no overlap", until)
	return nil
}

func decoded(t *testing.T, field, value string) string {
	t.Helper()
	var out bytes.Buffer
	var err error
	switch field {
	case "body.gzip":
		var r *gzip.Reader
		if r, err = gzip.NewReader(strings.NewReader(value)); err == nil {
			_, err = out.ReadFrom(r)
		}
	case "body.br":
		_, err = out.ReadFrom(brotli.NewReader(strings.NewReader(value)))
	case "body.zstd":
		var r *zstd.Decoder
		if r, err = zstd.NewReader(strings.NewReader(value)); err == nil {
			defer r.Close()
			_, err = out.ReadFrom(r)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	return out.String()
}

// format returns the file with one line for each vector, step and record.
func (v vectors) format(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	line := func(indent string, value any, comma bool) {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		require.NoError(t, encoder.Encode(value))
		b.WriteString(indent + strings.TrimSuffix(text.String(), "\n"))
		if comma {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("{\n")
	section(&b, "keys", v.Keys, line)
	section(&b, "shards", v.Shards, line)
	section(&b, "secrets", v.Secrets, line)
	section(&b, "peppers", v.Peppers, line)
	b.WriteString("  \"cases\": [\n")
	for i, c := range v.Cases {
		name, _ := json.Marshal(c.Name)
		fmt.Fprintf(&b, "    {\n      \"name\": %s,\n", name)
		if c.Shards > 0 {
			fmt.Fprintf(&b, "      \"shards\": %d,\n", c.Shards)
		}
		b.WriteString("      \"steps\": [\n")
		for n, s := range c.Steps {
			line("        ", s, n < len(c.Steps)-1)
		}
		b.WriteString("      ],\n      \"records\": {\n")
		for n, member := range slices.Sorted(maps.Keys(c.Records)) {
			name, _ := json.Marshal(member)
			line("        "+string(name)+": ", c.Records[member], n < len(c.Records)-1)
		}
		b.WriteString("      }\n    }")
		if i < len(v.Cases)-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("  ]\n}\n")
	return b.Bytes()
}

func section[T any](b *bytes.Buffer, name string, all []T, line func(string, any, bool)) {
	fmt.Fprintf(b, "  %q: [\n", name)
	for i, one := range all {
		line("    ", one, i < len(all)-1)
	}
	b.WriteString("  ],\n")
}
