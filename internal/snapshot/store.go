package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	dialTimeout = 5 * time.Second
	// answerTimeout bounds how long a server takes to begin an answer, transferTimeout how long a transfer takes.
	answerTimeout   = 30 * time.Second
	transferTimeout = 10 * time.Minute
	// A download on average slower than slowest, in bytes a second, is given up: Redis would send everything earlier.
	slowest = 8 << 20
	// partSize is the size of the parts in which S3 gets a snapshot.
	partSize = 16 << 20
)

// patience bounds how long a download may wait for a byte. Its first patience doesn't count for slowest. Tests shorten
// it.
var patience = 10 * time.Second

var errSlow = fmt.Errorf("the store is too slow: no byte for %v, or less than %d MiB/s after the first %[1]v", patience,
	slowest>>20)

// StoreError is an error of where the snapshot is kept, and not of Redis.
type StoreError struct{ error }

// Unwrap returns the cause.
func (e *StoreError) Unwrap() error { return e.error }

// location is where a snapshot is: a path, or a URL.
type location struct {
	path string
	url  *url.URL // nil: path counts
}

// CheckLocation returns an error unless text is a path or a URL for [Open] and [Write].
func CheckLocation(text string) error {
	_, err := parseLocation(text)
	return err
}

// parseLocation never returns an error with a part of the URL, which may contain a password.
func parseLocation(text string) (location, error) {
	scheme, _, isURL := strings.Cut(text, "://")
	if !isURL {
		return location{path: text}, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return location{}, errors.New("no valid URL")
	}
	switch {
	case scheme == "s3" && u.Host != "" && len(u.Path) > 1 && u.User == nil && u.RawQuery == "":
	case (scheme == "http" || scheme == "https") && u.Host != "":
	default:
		return location{}, errors.New("want a path, s3://BUCKET/KEY, http://… or https://…")
	}
	return location{url: u}, nil
}

// newTransport returns a transport for servers that may not answer.
func newTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	transport.ResponseHeaderTimeout = answerTimeout
	return transport
}

// newS3 returns a client of the S3-compatible store that the environment names, as for Amazon's own tools.
func newS3() (*minio.Client, error) {
	endpoint, err := url.Parse(cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		"https://s3.amazonaws.com"))
	if err != nil || endpoint.Host == "" {
		return nil, errors.New("AWS_ENDPOINT_URL: want http://HOST:PORT or https://HOST:PORT")
	}
	transport := newTransport()
	return minio.New(endpoint.Host, &minio.Options{
		Creds: credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{},
			&credentials.FileAWSCredentials{}, &credentials.IAM{Client: &http.Client{Transport: transport}}}),
		Secure: endpoint.Scheme != "http", Transport: transport, MaxRetries: 3,
		Region: cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")),
	})
}

// fetch opens a file, or a temporary copy of what a URL names.
func fetch(ctx context.Context, source string) (*os.File, error) {
	l, err := parseLocation(source)
	if err != nil {
		return nil, err
	}
	if l.url == nil {
		return openFile(l.path)
	}
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	w := &slowWatch{begin: time.Now(), timer: time.AfterFunc(patience, func() { giveUp(errSlow) })}
	defer w.timer.Stop()
	file, err := l.download(ctx, w)
	if err != nil && context.Cause(ctx) == errSlow {
		return nil, errSlow // the client of S3 returns only that the context ended
	}
	return file, err
}

// slowWatch gives a download up that is too slow, see patience.
type slowWatch struct {
	begin time.Time
	bytes int64
	timer *time.Timer // gives it up
}

// Write counts what has arrived.
func (w *slowWatch) Write(b []byte) (int, error) {
	w.bytes += int64(len(b))
	allowed := patience + time.Duration(float64(w.bytes)/slowest*float64(time.Second))
	if w.timer.Stop() {
		w.timer.Reset(min(patience, allowed-time.Since(w.begin)))
	}
	return len(b), nil
}

// download copies what the URL names to a temporary file, and to progress.
func (l location) download(ctx context.Context, progress io.Writer) (*os.File, error) {
	body, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	file, err := os.CreateTemp("", "gatehouse-snapshot-")
	if err != nil {
		return nil, err
	}
	os.Remove(file.Name()) // its disk is free once it is closed, however this process ends
	if _, err = io.Copy(file, io.TeeReader(body, progress)); err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// openFile opens a regular file, and nothing else: a FIFO without a writer would block.
func openFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// get begins to read what the URL names.
func (l location) get(ctx context.Context) (io.ReadCloser, error) {
	if l.url.Scheme == "s3" {
		client, err := newS3()
		if err != nil {
			return nil, err
		}
		return client.GetObject(ctx, l.url.Host, l.url.Path[1:], minio.GetObjectOptions{})
	}
	return l.request(ctx, http.MethodGet, nil, 0)
}

// request sends a request, and returns the body of a good response.
func (l location) request(ctx context.Context, method string, body io.Reader, size int64) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, l.url.String(), body)
	if err != nil {
		return nil, errors.New("no valid URL")
	}
	request.ContentLength = size
	response, err := (&http.Client{Transport: newTransport()}).Do(request)
	if wrapped, is := errors.AsType[*url.Error](err); is {
		err = wrapped.Err // without the URL
	}
	if err != nil {
		return nil, err
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		response.Body.Close()
		return nil, fmt.Errorf("%s: the server answered %s", method, response.Status)
	}
	return response.Body, nil
}

// destination is where a snapshot will be.
type destination struct {
	location
	file *os.File // beside the path, or temporary
}

func openDestination(text string) (*destination, error) {
	l, err := parseLocation(text)
	if err != nil {
		return nil, err
	}
	directory := ""
	if l.url == nil {
		directory = filepath.Dir(l.path)
	}
	file, err := os.CreateTemp(directory, ".gatehouse-snapshot-")
	if err != nil {
		return nil, err
	}
	return &destination{l, file}, nil
}

// discard removes what was not published.
func (d *destination) discard() {
	d.file.Close()
	os.Remove(d.file.Name())
}

// publish makes the file, of size bytes, readable at the destination.
func (d *destination) publish(ctx context.Context, size int64) error {
	if d.url == nil {
		if err := d.file.Chmod(0o640); err != nil {
			return err
		}
		return os.Rename(d.file.Name(), d.path)
	}
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if d.url.Scheme == "s3" {
		client, err := newS3()
		if err != nil {
			return err
		}
		_, err = client.PutObject(ctx, d.url.Host, d.url.Path[1:], d.file, size,
			minio.PutObjectOptions{ContentType: "application/octet-stream", PartSize: partSize})
		return err
	}
	body, err := d.request(ctx, http.MethodPut, d.file, size)
	if err == nil {
		body.Close()
	}
	return err
}
