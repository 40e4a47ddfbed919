package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// nonEmpty is the text of a flag that, if given, must not be empty: an unset shell variable would name another object.
type nonEmpty string

// UnmarshalText refuses an empty text.
func (f *nonEmpty) UnmarshalText(text []byte) error {
	if *f = nonEmpty(text); *f == "" {
		return errors.New("is empty")
	}
	return nil
}

// storedVersion is the version that a record must have. 0, without the flag, accepts any version.
type storedVersion uint64

// UnmarshalText refuses 0, since 0 would accept any version.
func (v *storedVersion) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 53)
	if err != nil {
		return fmt.Errorf("%q: want a number up to 2^53 - 1", text)
	}
	if *v = storedVersion(n); n == 0 {
		return errors.New("0: no record has it")
	}
	return nil
}

// keyFlags add virtual host, host and language to a key.
type keyFlags struct {
	VirtualHost nonEmpty `placeholder:"NAME" help:"Virtual host whose object it is; the key is a path, or @DEVICE/path."`
	Host        nonEmpty `placeholder:"HOST" help:"Host whose object it is, under a rule with scope host."`
	Language    nonEmpty `placeholder:"TAG" help:"Language of the object, such as de, under a rule with this one among its languages."`
}

// completeKey adds virtual host, host and language to the key.
func (f *keyFlags) completeKey(key *string) error {
	if f.Language != "" {
		*key = publish.KeyOfLanguage(*key, string(f.Language))
	}
	if f.VirtualHost == "" && f.Host == "" {
		return nil
	}
	device, path := "", *key
	if at := strings.IndexByte(path, '/'); at > 0 && path[0] == '@' {
		device, path = path[:at], path[at:]
	}
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return usagef("key %q: with --virtual-host or --host, want /path or @device/path", *key)
	}
	*key = device + publish.KeyOfVirtualHost(string(f.VirtualHost), string(f.Host), path)
	return nil
}

type putCmd struct {
	Key         string        `arg:"" help:"Path, with the sorted query if any; @DEVICE/path for one device only."`
	File        string        `required:"" placeholder:"FILE" help:"The body, at most 1 MiB; - is standard input."`
	ContentType string        `placeholder:"TYPE" help:"Content type. Default: by the extension of file or key, or by the body."`
	Status      int           `default:"200" placeholder:"N" help:"Status code: 200, 301, 302, 307, 308, 404 or 410."`
	Header      []string      `sep:"none" placeholder:"NAME:VALUE" help:"A header of the answer, such as 'location: /new'; may be repeated."`
	Version     uint64        `placeholder:"N" help:"Version, greater than the stored one. Default: the next one."`
	IfVersion   storedVersion `placeholder:"N" help:"Only if this is the stored version."`
	IfAbsent    bool          `help:"Only if there is no object at the key."`
	TTL         freshFor      `name:"ttl" placeholder:"DURATION" help:"How long the object is fresh, such as 90s. Default: until it changes."`
	Tag         []string      `placeholder:"TAG" help:"Tags for purges, at most 16."`

	keyFlags `embed:""`
	jsonFlag `embed:""`
}

// freshFor is how long objects are fresh. 0, without the flag, means until the object changes.
type freshFor struct{ time.Duration }

// UnmarshalText refuses 0, since 0 would mean for ever.
func (f *freshFor) UnmarshalText(text []byte) (err error) {
	if f.Duration, err = time.ParseDuration(string(text)); err != nil {
		return err
	}
	if f.Duration <= 0 || f.Duration%time.Millisecond != 0 {
		return fmt.Errorf("%s: want whole milliseconds, 1ms at least; without it, fresh until changed", f.Duration)
	}
	return nil
}

// writtenObject is the output of put and delete.
type writtenObject struct {
	Key         string `json:"key"`
	Version     uint64 `json:"version"`
	ETag        string `json:"etag,omitempty"`
	ContentType string `json:"content_type,omitempty"`
}

// Run publishes the object.
func (cmd *putCmd) Run(c *console) error {
	if err := cmd.completeKey(&cmd.Key); err != nil {
		return err
	}
	if info, err := os.Stat(cmd.File); err == nil && info.IsDir() {
		return usagef("%s: is a directory; gatehousectl sync publishes its files", printable(cmd.File))
	}
	body, err := c.readInput(cmd.File, limits.MaxBody, "an object")
	if err != nil {
		return err
	}
	object := publish.Object{Key: cmd.Key, Body: body, ContentType: cmd.ContentType, Status: cmd.Status,
		TTL: cmd.TTL.Duration, Version: cmd.Version, Tags: cmd.Tag, IfVersion: uint64(cmd.IfVersion), IfAbsent: cmd.IfAbsent}
	for _, line := range cmd.Header {
		name, value, found := strings.Cut(line, ":")
		if !found {
			return usagef("--header %q: want NAME:VALUE", line)
		}
		object.Headers = append(object.Headers, publish.Header{Name: name, Value: strings.TrimSpace(value)})
	}
	if object.ContentType == "" {
		object.ContentType = detectContentType(cmd.File, cmd.Key, body)
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		receipt, err := p.Put(ctx, object)
		if err != nil {
			return err
		}
		wrote := writtenObject{cmd.Key, receipt.Version, object.EntityTag(), object.ContentType}
		return cmd.printResult(c, wrote, "%s: version %d, etag %s, %s\n", wrote.Key, wrote.Version, wrote.ETag,
			wrote.ContentType)
	})
}

// detectContentType returns the content type by the extension of the file, then of the key, then by the body.
func detectContentType(file, key string, body []byte) string {
	_, keyPath := objectkey.Split(key)
	if end := strings.IndexAny(keyPath, "?#"); end >= 0 {
		keyPath = keyPath[:end]
	}
	for _, name := range []string{file, keyPath} {
		if t := mime.TypeByExtension(path.Ext(name)); t != "" {
			return t
		}
	}
	if start := bytes.TrimSpace(body); len(start) > 0 && (start[0] == '{' || start[0] == '[') && json.Valid(start) {
		return "application/json" // http.DetectContentType returns text/plain for JSON
	}
	return http.DetectContentType(body)
}

type getCmd struct {
	Key      string `arg:"" help:"The object's key."`
	Encoding string `default:"identity" enum:"identity,gzip,br,zstd" help:"Which encoding: identity, gzip, br or zstd."`
	Head     bool   `help:"Print the object's metadata instead of its body; --json does, too."`

	keyFlags `embed:""`
	jsonFlag `embed:""`
}

// Run prints only the body or, with --head, only the metadata.
func (cmd *getCmd) Run(c *console) error {
	if err := cmd.completeKey(&cmd.Key); err != nil {
		return err
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		o, err := p.Get(ctx, cmd.Key)
		if err != nil {
			return err
		}
		if cmd.JSON {
			return c.printJSON(newObjectHead(&o))
		}
		if cmd.Head {
			return printHead(c, o)
		}
		var has []string
		for _, b := range o.Bodies {
			if b.Encoding.String() == cmd.Encoding {
				_, err := c.stdout.Write(b.Bytes)
				return err
			}
			has = append(has, b.Encoding.String())
		}
		return fmt.Errorf("get %q: has no encoding %s (has: %s)", cmd.Key, cmd.Encoding, strings.Join(has, ", "))
	})
}

// objectHead is an object's metadata.
type objectHead struct {
	publish.Entry
	Headers []string       `json:"headers,omitempty"` // lines
	Bytes   map[string]int `json:"bytes"`             // by encoding
}

func newObjectHead(o *contract.Object) objectHead {
	h := objectHead{publish.Entry{Key: o.Key, Version: o.Version, PublishedMS: o.PublishedMS, ETag: o.ETag,
		ContentType: o.ContentType, Status: cmp.Or(o.Status, 200), TTLMS: o.TTLMS, Tags: o.Tags}, nil, map[string]int{}}
	for _, header := range o.Headers.List() {
		h.Headers = append(h.Headers, header.Name+": "+header.Value)
	}
	for _, b := range o.Bodies {
		h.Bytes[b.Encoding.String()] = len(b.Bytes)
	}
	h.Size = int64(h.Bytes["identity"])
	return h
}

func printHead(c *console, o contract.Object) error {
	fresh := "until changed"
	if o.TTLMS != 0 {
		fresh = o.TTL().String()
	}
	w := c.newTable()
	fmt.Fprintf(w, "key:\t%s\nversion:\t%d\npublished:\t%s\nstatus:\t%d\netag:\t%s\ncontent-type:\t%s\nfresh:\t%s\n",
		o.Key, o.Version, formatTimestamp(o.PublishedMS), cmp.Or(o.Status, 200), o.ETag, o.ContentType, fresh)
	for _, h := range o.Headers.List() {
		fmt.Fprintf(w, "header:\t%s: %s\n", h.Name, h.Value)
	}
	if len(o.Tags) > 0 {
		fmt.Fprintf(w, "tags:\t%s\n", strings.Join(o.Tags, ", "))
	}
	for _, b := range o.Bodies {
		fmt.Fprintf(w, "%s:\t%d bytes\n", b.Encoding, len(b.Bytes))
	}
	return w.Flush()
}

// formatTimestamp formats unix milliseconds.
func formatTimestamp(ms int64) string {
	return time.UnixMilli(min(ms, limits.MaxTime)).UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

type deleteCmd struct {
	Key     string `arg:"" help:"The object's key."`
	Force   bool   `help:"Also delete a key that doesn't exist, so that a put in flight with an older version doesn't bring it back."`
	Version uint64 `placeholder:"N" help:"Version, greater than the stored one. Default: the next one."`

	keyFlags `embed:""`
	jsonFlag `embed:""`
}

// Run deletes the object.
func (cmd *deleteCmd) Run(c *console) error {
	if err := cmd.completeKey(&cmd.Key); err != nil {
		return err
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		if !cmd.Force {
			found, err := p.MayExist(ctx, cmd.Key)
			if err != nil {
				return err
			}
			if !found {
				return fmt.Errorf("delete %q: %w; use --force to write a tombstone", cmd.Key, publish.ErrNotFound)
			}
		}
		receipt, err := p.Delete(ctx, cmd.Key, cmd.Version)
		if err != nil {
			return err
		}
		return cmd.printResult(c, writtenObject{Key: cmd.Key, Version: receipt.Version}, "%s: deleted, version %d\n", cmd.Key,
			receipt.Version)
	})
}

type listCmd struct {
	Prefix string `arg:"" optional:"" help:"Only the keys that start with this."`

	keyFlags `embed:""`
	jsonFlag `embed:""`
}

// Run lists the objects.
func (cmd *listCmd) Run(c *console) error {
	if cmd.Prefix == "" && cmd.VirtualHost+cmd.Host != "" {
		cmd.Prefix = "/"
	}
	if err := cmd.completeKey(&cmd.Prefix); err != nil {
		return err
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		entries := map[string]publish.Entry{} // by key: List may repeat an entry
		for entry, err := range p.List(ctx, cmd.Prefix) {
			if err != nil {
				return err
			}
			entries[entry.Key] = entry
		}
		w := c.newTable()
		lines := json.NewEncoder(c.stdout)
		if !cmd.JSON {
			fmt.Fprintln(w, "KEY\tVERSION\tSTATUS\tSIZE\tPUBLISHED\tTYPE\tTAGS")
		}
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			e := entries[key]
			if cmd.JSON {
				if err := lines.Encode(e); err != nil {
					return err
				}
				continue
			}
			if !limits.ValidContentType(e.ContentType) {
				e.ContentType = fmt.Sprintf("%q", e.ContentType) // unsafe on a terminal
			}
			if contract.CheckTags(e.Tags) != nil {
				e.Tags = []string{fmt.Sprintf("%q", e.Tags)}
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", e.Key, e.Version, e.Status, e.Size, formatTimestamp(e.PublishedMS),
				e.ContentType, strings.Join(e.Tags, ","))
		}
		return w.Flush()
	})
}
