package contract

import (
	"strconv"
)

// MaxMemory returns the bound of a record's memory in Redis, in bytes as MEMORY USAGE reports. The bound is half as
// much again as the largest record within the limits takes, since allocators round up. Readers may skip larger records.
func MaxMemory(kind byte) int64 {
	if kind == KindObject {
		return 8 << 20
	}
	return 16 << 10
}

// CheckMemory returns an error if a record takes more than [MaxMemory].
func (m Member) CheckMemory(bytes int64) error {
	if most := MaxMemory(m.Kind); bytes > most {
		return refuse(ReasonLimit, "the record takes %d bytes in redis, no record within the limits takes more than %d: it "+
			"was not read", bytes, most)
	}
	return nil
}

// recordHead has the common fields of all records.
type recordHead struct {
	version   uint64
	published int64 // unix milliseconds
	deleted   bool
}

// parseHead parses the common fields. Errors: a tombstone with other fields, and fields for which known returns false.
func parseHead(fields map[string]string, known func(field string) bool) (recordHead, error) {
	var h recordHead
	text, found := fields[FieldVersion]
	if !found {
		return h, refuse(ReasonMissing, "%s: missing", FieldVersion)
	}
	var err error
	if h.version, err = parseNumber(FieldVersion, text, 1); err != nil {
		return h, err
	}
	if text, found = fields[FieldPublished]; !found {
		return h, refuse(ReasonMissing, "%s: missing", FieldPublished)
	}
	if h.published, err = parseMillis(FieldPublished, text, 0); err != nil {
		return h, err
	}
	if h.deleted, err = parseFlag(fields, FieldDeleted); err != nil {
		return h, err
	}
	for field := range fields {
		switch field {
		case FieldVersion, FieldPublished, FieldDeleted:
			continue
		}
		if !known(field) {
			return h, refuse(ReasonUnknown, "%s: unknown field", quote(field))
		}
		if h.deleted {
			return h, refuse(ReasonConflict, "%s: not allowed beside %s", field, FieldDeleted)
		}
	}
	return h, nil
}

func (h recordHead) headFields() map[string]string {
	fields := map[string]string{
		FieldVersion:   strconv.FormatUint(h.version, 10),
		FieldPublished: strconv.FormatInt(h.published, 10),
	}
	if h.deleted {
		fields[FieldDeleted] = "1"
	}
	return fields
}

func parseMillis(field, text string, lowest uint64) (int64, error) {
	n, err := parseNumber(field, text, lowest)
	return int64(n), err // below 2^53
}

// parseFlag parses a field that is "1" or absent. Any other value is an error: with "disabled" set to "true", the
// device must not authenticate.
func parseFlag(fields map[string]string, field string) (bool, error) {
	value, found := fields[field]
	if found && value != "1" {
		return false, refuse(ReasonMalformed, `%s: %s, want "1" or no such field`, field, quote(value))
	}
	return found, nil
}
