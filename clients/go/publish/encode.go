package publish

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"runtime"
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
	// brotliLevel is the highest level that takes about as long as gzip's highest. Level 11 takes about twenty times as
	// long for a few percent.
	brotliLevel = 9
	// smallBody is where higher levels begin to pay: smaller bodies become about as small by gzip's level 6, brotli's 5
	// and zstd's default, in a third of the time.
	smallBody = 16 << 10
	// maxLargeBodies bounds the larger bodies encoded at a time, on any machine.
	maxLargeBodies  = 3
	gzipLevelFast   = 6
	brotliLevelFast = 5
)

// resetWriter is the common interface of the streaming encoders.
type resetWriter interface {
	io.WriteCloser
	Reset(io.Writer)
}

// The encoders of small bodies are reused, because each takes up to megabytes.
var (
	gzipFast   = newGzip(gzipLevelFast)
	brotliFast = sync.Pool{New: func() any { return brotli.NewWriterLevel(nil, brotliLevelFast) }}
	zstdFast   = sync.OnceValues(func() (*zstd.Encoder, error) {
		return newZstd(zstd.SpeedDefault, runtime.GOMAXPROCS(0))
	})
)

// encoders encode one body at a time.
type encoders struct {
	gzip, brotli resetWriter
	zstd         *zstd.Encoder
}

// largeBodies has a slot for each large body being encoded. idleEncoders has the encoders of earlier large bodies,
// which take 70 MB. A sync.Pool would keep encoders for each core.
var (
	largeBodies  = make(chan struct{}, min(runtime.GOMAXPROCS(0), maxLargeBodies))
	idleEncoders = make(chan encoders, cap(largeBodies))
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

// newZstd returns an encoder for atOnce concurrent bodies. The window is as large as the largest body, far below the 8
// MiB that RFC 9659 allows.
func newZstd(level zstd.EncoderLevel, atOnce int) (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithWindowSize(limits.MaxBody),
		zstd.WithEncoderConcurrency(atOnce))
}

// encodeBody returns body itself, not a copy, and all smaller encodings of body.
func encodeBody(body []byte, contentType string) ([]contract.Body, error) {
	bodies := []contract.Body{{Encoding: coding.Identity, Bytes: body}}
	if isCompressedType(contentType) {
		return bodies, nil
	}
	e, done, err := takeEncoders(len(body))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	defer done()
	zipped, err := writeStream(e.gzip, body)
	if err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	brotlied, err := writeStream(e.brotli, body)
	if err != nil {
		return nil, fmt.Errorf("brotli: %w", err)
	}
	for _, b := range []contract.Body{
		{Encoding: coding.Gzip, Bytes: zipped},
		{Encoding: coding.Brotli, Bytes: brotlied},
		{Encoding: coding.Zstd, Bytes: e.zstd.EncodeAll(body, nil)},
	} {
		if len(b.Bytes) < len(body) {
			bodies = append(bodies, b)
		}
	}
	return bodies, nil
}

// takeEncoders returns encoders for a body of size bytes, until done is called. Large bodies wait for a slot.
func takeEncoders(size int) (e encoders, done func(), err error) {
	if size < smallBody {
		e = encoders{gzip: gzipFast.Get().(resetWriter), brotli: brotliFast.Get().(resetWriter)}
		e.zstd, err = zstdFast()
		return e, func() { gzipFast.Put(e.gzip); brotliFast.Put(e.brotli) }, err
	}
	largeBodies <- struct{}{}
	select {
	case e = <-idleEncoders:
	default:
		if e, err = newEncoders(); err != nil {
			<-largeBodies
			return e, nil, err
		}
	}
	return e, func() { idleEncoders <- e; <-largeBodies }, nil
}

// newEncoders returns encoders for large bodies.
func newEncoders() (e encoders, err error) {
	e.brotli = brotli.NewWriterLevel(nil, brotliLevel)
	if e.gzip, err = gzip.NewWriterLevel(nil, gzip.BestCompression); err == nil {
		e.zstd, err = newZstd(zstd.SpeedBestCompression, 1)
	}
	return e, err
}

func writeStream(w resetWriter, body []byte) ([]byte, error) {
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

// isCompressedType reports whether bodies with this content type are compressed already.
func isCompressedType(contentType string) bool {
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
