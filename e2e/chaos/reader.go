package chaos

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// requestTimeout is longer than all faults and all timeouts at the edge.
const requestTimeout = 20 * time.Second

// reader sends requests to the edge over one connection, which it keeps open.
type reader struct {
	world   *world
	content Content
	client  http.Client
	place   int
	url     string
	tags    map[int]string // the last entity-tag, by key
}

func newReader(w *world, content Content, place int, url string) *reader {
	return &reader{
		world: w, content: content, place: place, url: url, tags: map[int]string{},
		client: http.Client{
			Transport: &http.Transport{DisableCompression: true, MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1},
			Timeout:   requestTimeout,
		},
	}
}

func (r *reader) close() { r.client.CloseIdleConnections() }

// read requests a key, in one of the ways in which clients do.
func (r *reader) read(ctx context.Context, key int) Read {
	got := Read{Key: key, Place: r.place}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path(key), nil)
	if err != nil {
		panic(err) // the URL is ours
	}
	switch tag := r.tags[key]; rand.IntN(8) {
	case 0, 1:
		if tag != "" {
			request.Header.Set("If-None-Match", tag)
		}
	case 2:
		request.Header.Set("Accept-Encoding", "gzip")
	}
	before := r.world.moment()
	response, err := r.client.Do(request)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
	}
	r.world.stamp(&got, before)
	if err != nil {
		got.Answer, got.Detail = Unavailable, err.Error()
		return got
	}
	r.judge(&got, response, body)
	return got
}

// judge classifies a response.
func (r *reader) judge(got *Read, response *http.Response, body []byte) {
	got.Detail = response.Header.Get("Cache-Status")
	tag := response.Header.Get("ETag")
	switch {
	case strings.HasPrefix(got.Detail, "gatehouse; hit"):
		version, err := r.version(got.Key, response, body)
		if err != nil {
			got.Answer, got.Detail = WrongBody, fmt.Sprintf("%d, %s: %v", response.StatusCode, tag, err)
			return
		}
		got.Answer, got.Version = Hit, version
		r.tags[got.Key] = tag
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

// version returns the version in a hit's body or entity-tag.
func (r *reader) version(key int, response *http.Response, body []byte) (uint64, error) {
	tagged, err := parseETag(key, response.Header.Get("ETag"))
	if err != nil {
		return 0, err
	}
	switch response.StatusCode {
	case http.StatusNotModified:
		if want := response.Request.Header.Get("If-None-Match"); !strings.HasSuffix(want, strings.TrimPrefix(response.Header.Get("ETag"), "W/")) {
			return 0, fmt.Errorf("not modified, but it was asked for with %q", want)
		}
		return tagged, nil
	case http.StatusOK:
	default:
		return 0, errors.New("a hit of that status")
	}
	if coding := response.Header.Get("Content-Encoding"); coding == "gzip" {
		unzipped, err := gzip.NewReader(bytes.NewReader(body))
		if err == nil {
			body, err = io.ReadAll(unzipped)
		}
		if err != nil {
			return 0, fmt.Errorf("gunzip: %w", err)
		}
	} else if coding != "" {
		return 0, fmt.Errorf("content coding %q was not asked for", coding)
	}
	version, err := r.content.Parse(key, body)
	if err == nil && version != tagged {
		err = fmt.Errorf("the body of version %d", version)
	}
	return version, err
}
