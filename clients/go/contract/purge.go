package contract

import (
	"strconv"
	"strings"
	"unique"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// MaxTags is the maximum number of tags of one object.
const MaxTags = 16

// Purge is the content of a purge's hash in Redis. A purge covers everything under its ID that was written earlier. A
// tombstone ends a purge, and has only ID, Version, PublishedMS and Deleted.
type Purge struct {
	// ID is [PrefixPurge] or [TagPurge], which the hash does not contain: the caller of [ParsePurge] sets ID.
	ID string
	// Version increases with every write of the record.
	Version uint64
	// PublishedMS is the time of the write, in unix milliseconds of Redis.
	PublishedMS int64
	// Deleted marks a tombstone.
	Deleted bool
	// Hard is the sequence number of the shard's last hard purge of ID: objects up to Hard are as good as deleted; 0:
	// none.
	Hard uint64
	// Soft is the sequence number of the last soft purge after Hard: objects up to Soft are stale; 0: none.
	Soft uint64
}

// PrefixPurge returns the ID of the purge of a virtual host's objects with paths that begin with prefix. virtualHost
// "": objects without a virtual host. prefix begins and ends with a slash.
func PrefixPurge(virtualHost, prefix string) string { return purgeSpace(virtualHost) + prefix }

// TagPurge returns the ID of the purge of a virtual host's objects with a tag. virtualHost "": objects without a
// virtual host.
func TagPurge(virtualHost, tag string) string { return purgeSpace(virtualHost) + "#" + tag }

// SplitPurge returns the parts of a purge's ID: the name of the virtual host, "" for none, and the prefix or the tag.
func SplitPurge(id string) (virtualHost, prefix, tag string) {
	space, rest := cutPurgeSpace(id)
	if tag, tagged := strings.CutPrefix(rest, "#"); tagged {
		return strings.TrimPrefix(space, "//"), "", tag
	}
	return strings.TrimPrefix(space, "//"), rest, ""
}

// cutPurgeSpace returns a purge's ID in two parts: "//name" of a virtual host, "" for none, and the rest.
func cutPurgeSpace(id string) (space, rest string) {
	if !strings.HasPrefix(id, "//") {
		return "", id
	}
	end := 2 + strings.IndexAny(id[2:], "/#")
	if end < 2 {
		end = len(id)
	}
	return id[:end], id[end:]
}

func purgeSpace(virtualHost string) string {
	if virtualHost == "" {
		return ""
	}
	return "//" + virtualHost
}

// ParsePurge parses a purge's hash from HGETALL or an event. A missing key, which has no fields, is an error: check for
// missing keys first.
func ParsePurge(fields map[string]string) (Purge, error) {
	h, err := parseHead(fields, func(field string) bool { return field == FieldHard || field == FieldSoft })
	if err != nil {
		return Purge{}, err
	}
	p := Purge{Version: h.version, PublishedMS: h.published, Deleted: h.deleted}
	if p.Deleted {
		return p, nil
	}
	for field, seq := range map[string]*uint64{FieldHard: &p.Hard, FieldSoft: &p.Soft} {
		if text, found := fields[field]; found {
			if *seq, err = parseNumber(field, text, 1); err != nil {
				return Purge{}, err
			}
		}
	}
	switch {
	case p.Hard == 0 && p.Soft == 0:
		return Purge{}, refuse(ReasonMissing, "%s and %s: missing", FieldHard, FieldSoft)
	case p.Soft != 0 && p.Soft <= p.Hard:
		return Purge{}, refuse(ReasonConflict, "%s: %d, not after %s: %d", FieldSoft, p.Soft, FieldHard, p.Hard)
	}
	return p, nil
}

// Last returns the sequence number of the purge's last write.
func (p Purge) Last() uint64 { return max(p.Hard, p.Soft) }

// Fields returns the hash of p, for [ParsePurge].
func (p Purge) Fields() map[string]string {
	fields := recordHead{p.Version, p.PublishedMS, p.Deleted}.headFields()
	for field, seq := range map[string]uint64{FieldHard: p.Hard, FieldSoft: p.Soft} {
		if seq != 0 && !p.Deleted {
			fields[field] = strconv.FormatUint(seq, 10)
		}
	}
	return fields
}

// CheckTags returns an error if the tags of an object are invalid. Any order is valid.
func CheckTags(tags []string) error {
	if len(tags) > MaxTags {
		return refuse(ReasonLimit, "tags: %d, at most %d are allowed", len(tags), MaxTags)
	}
	for _, tag := range tags {
		if !limits.ValidTag(tag) {
			return refuse(ReasonMalformed, "tags: %s: want 1 to %d of a URI's characters other than , and *", quote(tag),
				limits.MaxTag)
		}
	}
	return nil
}

func parseTags(text string) ([]string, error) {
	if most := MaxTags * (limits.MaxTag + 1); len(text) > most {
		return nil, refuse(ReasonLimit, "tags: %d bytes, at most %d are allowed", len(text), most)
	}
	tags := strings.Split(text, ",")
	if err := CheckTags(tags); err != nil {
		return nil, err
	}
	for i, tag := range tags {
		if i > 0 && tag <= tags[i-1] {
			return nil, refuse(ReasonMalformed, "tags: %s after %s: want byte order, each once", quote(tag), quote(tags[i-1]))
		}
	}
	for i, tag := range tags {
		tags[i] = unique.Make(tag).Value() // few distinct tags, in many objects
	}
	return tags, nil
}

// checkPurge returns an error if id is not the ID of a purge.
func checkPurge(id string) error {
	if len(id) > limits.MaxKey {
		return refuse(ReasonLimit, "purge %s: %d bytes, at most %d are allowed", quote(id), len(id), limits.MaxKey)
	}
	space, rest := cutPurgeSpace(id)
	valid := space == "" || limits.ValidKey(space+"/") && !strings.Contains(space, ":")
	tag, tagged := strings.CutPrefix(rest, "#")
	if tagged {
		valid = valid && limits.ValidTag(tag)
	} else {
		valid = valid && limits.ValidKey(rest) && strings.HasPrefix(rest, "/") && !strings.HasPrefix(rest, "//") &&
			strings.HasSuffix(rest, "/") && !strings.ContainsAny(rest, "?#")
	}
	if !valid {
		return refuse(ReasonMalformed, "purge %s: want [//virtual-host]/prefix/ or [//virtual-host]#tag", quote(id))
	}
	if want := space + objectkey.Canonical(rest); want != id && !tagged {
		return refuse(ReasonMalformed, "purge %s: not canonical, want %s", quote(id), quote(want))
	}
	return nil
}

// Purges are the purges of one shard, by their IDs.
type Purges map[string]Purge

// Of reports whether the object at key with tags, written as number seq of the same shard, was purged or is stale.
func (p Purges) Of(key string, tags []string, seq uint64) (purged, stale bool) {
	if len(p) == 0 {
		return false, false
	}
	VisitPurges(key, tags, func(id []byte) bool {
		found := p[string(id)]
		purged, stale = seq <= found.Hard && found.Hard != 0, stale || seq <= found.Soft && found.Soft != 0
		return !purged
	})
	return purged, stale && !purged
}

// Concerns reports whether the purge with the given ID concerns the object at key with tags.
func Concerns(id, key string, tags []string) (concerns bool) {
	VisitPurges(key, tags, func(other []byte) bool {
		concerns = string(other) == id
		return !concerns
	})
	return concerns
}

// VisitPurges calls visit with the IDs of all purges that concern the object at key with tags, until visit returns
// false: an ID for each slash of the path, and for each tag. visit must not retain id.
func VisitPurges(key string, tags []string, visit func(id []byte) bool) {
	virtualHost, target := objectkey.VirtualHost(key)
	var buffer [256]byte // enough unless a key is long
	id := buffer[:0]
	if virtualHost != "" {
		id = append(append(id, "//"...), virtualHost...)
	}
	host := len(id)
	for _, tag := range tags {
		if id = append(append(id[:host], '#'), tag...); !visit(id) {
			return
		}
	}
	id = id[:host]
	for i := range len(target) {
		if target[i] == '?' || target[i] == '#' {
			return
		}
		if id = append(id, target[i]); target[i] == '/' && !visit(id) {
			return
		}
	}
}
