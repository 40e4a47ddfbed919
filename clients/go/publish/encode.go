package publish

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"strings"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gatehouse/gatehouse/clients/go/coding"
	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
)

const (
	// brotliLevel is the highest level that takes about as long as gzip's highest; 11 takes about twenty times as long for
	// a few percent.
	brotliLevel = 9
	// smallBody is where higher levels begin to pay: smaller bodies become about as small by gzip's level 6, brotli's 5
	// and zstd's default, in a third of the time.
	smallBody       = 16 << 10
	gzipLevelFast   = 6
	brotliLevelFast = 5
)

// resetWriter is the common interface of the streaming encoders.
type resetWriter interface {
	io.WriteCloser
	Reset(io.Writer)
}

// The encoders are reused, because each takes up to megabytes.
var (
	gzipWriters   = newGzip(gzip.BestCompression)
	gzipFast      = newGzip(gzipLevelFast)
	brotliWriters = sync.Pool{New: func() any { return brotli.NewWriterLevel(nil, brotliLevel) }}
	brotliFast    = sync.Pool{New: func() any { return brotli.NewWriterLevel(nil, brotliLevelFast) }}
	zstdEncoder   = newZstd(zstd.SpeedBestCompression)
	zstdFast      = newZstd(zstd.SpeedDefault)
)

func newGzip(level int) sync.Pool {
	return sync.Pool{New: func() any {
		w, err := gzip.NewWriterLevel(nil, level)
		if err != nil {
			panic(err) // the level is a constant
		}
		return w
	}}
}

// newZstd returns a function that returns an encoder, which is made once. It encodes as many bodies at a time as there
// are cores. The window is as large as the largest body, far below the 8 MiB that RFC 9659 allows.
func newZstd(level zstd.EncoderLevel) func() (*zstd.Encoder, error) {
	return sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithWindowSize(limits.MaxBody))
	})
}

// encode returns body itself, not a copy, and its encodings that are smaller.
func encode(body []byte, contentType string) ([]contract.Body, error) {
	bodies := []contract.Body{{Encoding: coding.Identity, Bytes: body}}
	if compressed(contentType) {
		return bodies, nil
	}
	gzips, brotlis, zstds := &gzipWriters, &brotliWriters, zstdEncoder
	if len(body) < smallBody {
		gzips, brotlis, zstds = &gzipFast, &brotliFast, zstdFast
	}
	zipped, err := stream(gzips, body)
	if err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	brotlied, err := stream(brotlis, body)
	if err != nil {
		return nil, fmt.Errorf("brotli: %w", err)
	}
	encoder, err := zstds()
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	for _, b := range []contract.Body{
		{Encoding: coding.Gzip, Bytes: zipped},
		{Encoding: coding.Brotli, Bytes: brotlied},
		{Encoding: coding.Zstd, Bytes: encoder.EncodeAll(body, nil)},
	} {
		if len(b.Bytes) < len(body) {
			bodies = append(bodies, b)
		}
	}
	return bodies, nil
}

func stream(writers *sync.Pool, body []byte) ([]byte, error) {
	w := writers.Get().(resetWriter)
	defer writers.Put(w)
	var out bytes.Buffer
	w.Reset(&out)
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// compressed reports whether bodies with this content type are compressed already.
func compressed(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false
	}
	switch media {
	case "image/svg+xml", "image/bmp", "image/x-ms-bmp", "image/x-icon", "image/vnd.microsoft.icon",
		"image/tiff", "audio/wav", "audio/wave":
		return false
	case "application/zip", "application/gzip", "application/x-gzip", "application/zstd", "application/x-7z-compressed",
		"application/x-bzip2", "application/x-xz", "application/vnd.rar", "font/woff", "font/woff2":
		return true
	}
	kind, _, _ := strings.Cut(media, "/")
	return kind == "image" || kind == "video" || kind == "audio"
}
