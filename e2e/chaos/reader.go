package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// requestTimeout is longer than all faults and all timeouts at the edge.
const requestTimeout = 20 * time.Second

// reader sends requests to the edge over one connection, which it keeps open.
type reader struct {
	world     *world
	content   Content
	client    http.Client
	edgeIndex int
	url       string
	tags      map[int]string // the last entity-tag, by key
	dates     map[int]string // the last Last-Modified, by key
	probes    bool           // it never asks as another device
}

func newReader(w *world, content Content, edge int, url string) *reader {
	return &reader{
		world: w, content: content, edgeIndex: edge, url: url, tags: map[int]string{}, dates: map[int]string{},
		client: http.Client{
			Transport: &http.Transport{DisableCompression: true, MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1},
			Timeout:   requestTimeout,
		},
	}
}

func (r *reader) close() { r.client.CloseIdleConnections() }

// readKey requests a key, in a random way in which clients do.
func (r *reader) readKey(ctx context.Context, key int) Read {
	got := Read{Key: key, EdgeIndex: r.edgeIndex}
	method := http.MethodGet
	if r.content.isBulky(key) || rand.IntN(16) == 0 {
		method = http.MethodHead
	}
	request, err := http.NewRequestWithContext(ctx, method, r.url+pathOf(key), nil)
	if err != nil {
		panic(err) // the URL is ours
	}
	switch tag := r.tags[key]; rand.IntN(8) {
	case 0, 1:
		if tag != "" {
			request.Header.Set("If-None-Match", tag)
		}
	case 2:
		if date := r.dates[key]; date != "" {
			request.Header.Set("If-Modified-Since", date)
		}
	case 3, 4:
		request.Header.Set("Accept-Encoding", codings[rand.IntN(len(codings))])
	}
	foreign := false
	if owner, owned := ownerOf(key); owned {
		if foreign = !r.probes && rand.IntN(8) == 0; foreign {
			owner = (owner + 1) % owners
			request.Header.Del("If-None-Match")
		}
		request.Header.Set("x-device-id", ownerID(owner))
		request.Header.Set("x-device-token", steadySecrets[0])
	}
	before := r.world.moment()
	response, err := r.client.Do(request)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
	}
	r.world.stampRead(&got, before)
	if err != nil {
		got.Answer, got.Detail = Unavailable, err.Error()
		return got
	}
	if r.classifyResponse(&got, response, body); foreign {
		if got.Answer == Hit || got.Answer == WrongBody {
			got.Answer, got.Detail = WrongBody, fmt.Sprintf("%d, %s for another device", response.StatusCode,
				response.Header.Get("ETag"))
		} else {
			got.Answer, got.Process = Bypass, 0 // it shows nothing
		}
	}
	return got
}

// classifyResponse classifies a response.
func (r *reader) classifyResponse(got *Read, response *http.Response, body []byte) {
	got.Detail = response.Header.Get("Cache-Status")
	tag := response.Header.Get("ETag")
	switch {
	case strings.HasPrefix(got.Detail, "gatehouse; hit"):
		version, err := r.versionOf(got.Key, response, body)
		if err != nil {
			got.Answer, got.Detail = WrongBody, fmt.Sprintf("%d, %s: %v", response.StatusCode, tag, err)
			return
		}
		got.Answer, got.Version = Hit, version
		r.tags[got.Key], r.dates[got.Key] = tag, response.Header.Get("Last-Modified")
	case isUnverifiedOwner(got.Key, response):
		got.Answer, got.Process, got.Detail = Bypass, 0, response.Status // logins judge that
	case response.StatusCode != http.StatusOK:
		got.Answer, got.Detail = Unavailable, fmt.Sprintf("%d %q %.200q", response.StatusCode, got.Detail, body)
	case strings.HasPrefix(got.Detail, "gatehouse; fwd=uri-miss"):
		got.Answer = Miss
	case strings.HasPrefix(got.Detail, "gatehouse; fwd=stale"):
		got.Answer = Stale
	default:
		got.Answer = Bypass
	}
}

// isUnverifiedOwner reports whether an owner's request was refused: perhaps the owner isn't registered, or can't be
// verified now.
func isUnverifiedOwner(key int, response *http.Response) bool {
	_, owned := ownerOf(key)
	return owned && (response.StatusCode == http.StatusUnauthorized ||
		response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "")
}

// codings are the content codings that readers ask for.
var codings = []string{"gzip", "br", "zstd"}

// decodeBody returns the content of a body. The body's coding must be none or the requested coding.
func decodeBody(asked, coding string, body []byte) ([]byte, error) {
	var from io.Reader = bytes.NewReader(body)
	switch {
	case coding == "":
		return body, nil
	case coding != asked:
		return nil, fmt.Errorf("content coding %q was not asked for", coding)
	case coding == "gzip":
		unzipped, err := gzip.NewReader(from)
		if err != nil {
			return nil, fmt.Errorf("decode %s: %w", coding, err)
		}
		from = unzipped
	case coding == "br":
		from = brotli.NewReader(from)
	case coding == "zstd":
		decoder, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("decode %s: %w", coding, err)
		}
		defer decoder.Close()
		from = decoder
	}
	decoded, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", coding, err)
	}
	return decoded, nil
}

// versionOf returns the version in a hit's body or entity-tag.
func (r *reader) versionOf(key int, response *http.Response, body []byte) (uint64, error) {
	tagged, err := parseETag(key, response.Header.Get("ETag"))
	if err != nil {
		return 0, err
	}
	switch response.StatusCode {
	case http.StatusNotModified:
		if response.Request.Header.Get("If-Modified-Since") != "" {
			return tagged, nil
		}
		if want := response.Request.Header.Get("If-None-Match"); !strings.HasSuffix(want,
			strings.TrimPrefix(response.Header.Get("ETag"), "W/")) {
			return 0, fmt.Errorf("not modified, but it was asked for with %q", want)
		}
		return tagged, nil
	case http.StatusOK:
	default:
		return 0, errors.New("a hit of that status")
	}
	coding := response.Header.Get("Content-Encoding")
	if response.Request.Method == http.MethodHead {
		if coding == "" && response.ContentLength >= 0 && r.content.bodyLength(key, tagged) != response.ContentLength {
			return 0, fmt.Errorf("HEAD: %d bytes, want %d", response.ContentLength, r.content.bodyLength(key, tagged))
		}
		return tagged, nil
	}
	if body, err = decodeBody(response.Request.Header.Get("Accept-Encoding"), coding, body); err != nil {
		return 0, err
	}
	version, err := r.content.Parse(key, body)
	if err == nil && version != tagged {
		err = fmt.Errorf("the body of version %d", version)
	}
	return version, err
}
