package policy

import (
	"strconv"
	"unsafe"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// textBuffer has the texts of one decision. The next decision overwrites the texts.
type textBuffer []byte

// compose returns the part of all appended to the buffer.
func (t *textBuffer) compose(all []byte) string {
	added := all[len(*t):]
	*t = all
	return unsafe.String(unsafe.SliceData(added), len(added))
}

// formatDecimal returns prefix and n in decimal digits.
func (t *textBuffer) formatDecimal(prefix string, n int64) string {
	return t.compose(strconv.AppendInt(append(*t, prefix...), n, 10))
}

// joinTexts returns two texts with a separator.
//
//go:noinline
func (t *textBuffer) joinTexts(first string, separator byte, second string) string {
	return t.compose(append(append(append(*t, first...), separator), second...))
}

// languageKey returns the key of an object in a language, or key without a language or if the key would be too long.
func (t *textBuffer) languageKey(key, language string) string {
	if language == "" || len(key)+1+len(language) > limits.MaxKey {
		return key
	}
	return t.joinTexts(key, '#', language)
}

// upperEscapes returns a target with upper-case escapes, unless the target is too long for a key.
//
//go:noinline
func (t *textBuffer) upperEscapes(target string) string {
	if len(target) > 2*limits.MaxKey {
		return target
	}
	return t.compose(objectkey.AppendUpperEscapes(*t, target))
}
