package chaos

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// sizes of bodies in bytes. There are few on purpose: the content, not the length, must reveal a body of another
// object.
var sizes = [...]int{256, 1024, 1024, 4096}

// largeBody is the size of one body in largeEvery, more than a connection's window or a buffer of 64 KiB.
const (
	largeBody  = 96 << 10
	largeEvery = 64
	headerSize = 64
)

// Content makes the bodies. Each body names its key and version, so that a reader can tell from the bytes alone whether
// they are right.
type Content struct {
	Seed uint64
	// Bulk is the first key with a bulky body, 0 if there is none.
	Bulk int
}

// bulkBody is the size of a bulky body: a few of them take longer to reach the edge than to be read from Redis.
const bulkBody = 256 << 10

func (c Content) isBulky(key int) bool { return c.Bulk > 0 && key >= c.Bulk }

// pathOf returns the path of a key, 0 to 999. Every second key is under a rule with fetching.
func pathOf(key int) string {
	if _, owned := ownerOf(key); owned {
		return fmt.Sprintf("/chaos/own/%03d", key)
	}
	if key%2 == 0 {
		return fmt.Sprintf("/chaos/%03d", key)
	}
	return fmt.Sprintf("/chaos/fetch/%03d", key)
}

// owners is the number of devices with objects of their own.
const owners = 2

// ownerOf returns the owner of a key, and false if all clients share the key's object.
func ownerOf(key int) (owner int, owned bool) { return key / 20 % owners, key%20 == 7 }

// ownerID returns the device id of an owner.
func ownerID(owner int) string { return fmt.Sprintf("chaos-owner-%d", owner) }

// storedKey returns the name of a key in Redis.
func storedKey(key int) string {
	if owner, owned := ownerOf(key); owned {
		return "@" + ownerID(owner) + pathOf(key)
	}
	return pathOf(key)
}

// contentType returns the content type of the key's bodies. Every tenth key has text, published in all encodings; an
// image is published as it is.
func contentType(key int) string {
	if key%10 == 0 && key < 1000 {
		return "text/plain"
	}
	return "image/x-chaos"
}

// ttlOf returns the ttl of a key's objects, 0 for none.
func ttlOf(key int) time.Duration {
	if key%10 == 3 || key%20 == 4 {
		return time.Second
	}
	return 0
}

// etagOf returns the entity-tag, which names key and version: answers without a body need it.
func etagOf(key int, version uint64) string { return fmt.Sprintf(`"k%03d.v%d"`, key, version) }

// parseETag returns the version in an entity-tag of key, strong or weak.
func parseETag(key int, tag string) (uint64, error) {
	text, found := strings.CutPrefix(strings.TrimPrefix(tag, "W/"), fmt.Sprintf(`"k%03d.v`, key))
	if version, err := strconv.ParseUint(strings.TrimSuffix(text, `"`), 10, 64); found && err == nil {
		return version, nil
	}
	return 0, fmt.Errorf("entity-tag %.80q is not of %s", tag, pathOf(key))
}

// bodySize returns the size of a version's body, and the generator of the bytes.
func (c Content) bodySize(key int, version uint64) (*rand.Rand, int) {
	random := rand.New(rand.NewPCG(c.Seed^uint64(key), version))
	size := sizes[random.IntN(len(sizes))]
	if random.IntN(largeEvery) == 0 {
		size = largeBody
	}
	if c.isBulky(key) {
		size = bulkBody
	}
	return random, size
}

// bodyLength returns the length of a version's body.
func (c Content) bodyLength(key int, version uint64) int64 {
	_, size := c.bodySize(key, version)
	return int64(size)
}

// Body returns the body of a version.
func (c Content) Body(key int, version uint64) []byte {
	random, size := c.bodySize(key, version)
	fill := make([]byte, 0, size-headerSize+8)
	for len(fill) < size-headerSize {
		word := random.Uint64()
		for range 8 {
			fill = append(fill, 'a'+byte(word&15))
			word >>= 8
		}
	}
	fill = fill[:size-headerSize]
	sum := fnv.New64a()
	sum.Write(fill)
	body := make([]byte, 0, size)
	body = fmt.Appendf(body, "%-20s %012d %016x", storedKey(key), version, sum.Sum64())
	for len(body) < headerSize-1 {
		body = append(body, '.')
	}
	return append(append(body, '\n'), fill...)
}

// Parse returns the version of a body that was published under key, and an error for any other body.
func (c Content) Parse(key int, body []byte) (uint64, error) {
	var where string
	var version, sum uint64
	if _, err := fmt.Sscanf(string(body[:min(len(body), headerSize)]), "%s %d %x", &where, &version, &sum); err != nil {
		return 0, fmt.Errorf("a body of %d bytes that names no key and version: %.80q", len(body), body)
	}
	if where != storedKey(key) {
		return 0, fmt.Errorf("the body of %s version %d", where, version)
	}
	if want := c.Body(key, version); !bytes.Equal(body, want) {
		return 0, fmt.Errorf("not the body of version %d: %d bytes, want %d, the first difference is at %d",
			version, len(body), len(want), firstDifference(body, want))
	}
	return version, nil
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
