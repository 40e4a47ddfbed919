package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// fill returns a client of a Redis with objects, a purge and a device.
func fill(t *testing.T, objects int) *redis.Client {
	t.Helper()
	client := redistest.StartServer(t).Client(t)
	p := publish.New(client)
	for i := range objects {
		_, err := p.Put(t.Context(), publish.Object{Key: fmt.Sprint("/", i), Body: bytes.Repeat([]byte("b"), 100),
			ContentType: "image/png"})
		require.NoError(t, err)
	}
	_, err := p.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4})
	require.NoError(t, err)
	_, err = p.Purge(t.Context(), publish.Purge{Tag: "t"})
	require.NoError(t, err)
	return client
}

func open(t *testing.T, source string) *File {
	t.Helper()
	f, err := Open(t.Context(), source)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// records returns the members of a shard, with numbers of fields.
func (f *File) records(t *testing.T, shard int) map[string]int {
	t.Helper()
	all := map[string]int{}
	require.NoError(t, f.Visit(shard, func(m contract.Member, fields map[string]string) bool {
		all[m.String()] = len(fields)
		return true
	}))
	return all
}

// TestDamaged changes and cuts a snapshot at each byte: it is refused, or has another SHA-256, and nothing panics.
func TestDamaged(t *testing.T) {
	client, path := fill(t, 2), filepath.Join(t.TempDir(), "snapshot")
	w, err := Write(t.Context(), client, contract.Keyspace{}, path)
	require.NoError(t, err)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	f := open(t, path)
	want := map[string]int{"o:/0": 6, "o:/1": 6, "p:#t": 3, "c:d": 0}
	if got := f.records(t, 0); !maps.Equal(got, want) || f.SHA256 != w.SHA256 || int64(len(good)) != w.Bytes {
		t.Fatalf("got %v, SHA-256 %s of %d bytes; want %v, %s, %d", got, f.SHA256, len(good), want, w.SHA256, w.Bytes)
	}
	for i := range good {
		changed := bytes.Clone(good)
		changed[i] ^= 1 << (i % 8)
		for _, bad := range [][]byte{changed, good[:i]} {
			require.NoError(t, os.WriteFile(path, bad, 0o600))
			f, err := Open(t.Context(), path)
			if err != nil {
				continue
			}
			if f.SHA256 == w.SHA256 || len(bad) < len(good) {
				t.Errorf("byte %d, %d bytes: got SHA-256 %s, want another one or a refusal", i, len(bad), f.SHA256)
			}
			for shard := range f.Shards {
				f.Visit(shard, func(contract.Member, map[string]string) bool { return true })
			}
			f.Close()
		}
	}
}

// TestDamagedSection: a record that its section doesn't hold, or that is too large, is an error.
func TestDamagedSection(t *testing.T) {
	large := binary.AppendUvarint(nil, 2*maxRecord+1)
	for name, test := range map[string]struct {
		section []byte
		end     int64
	}{
		"empty record":       {[]byte{0}, 1},
		"cut size":           {[]byte{0x80}, 1},
		"cut record":         {append([]byte{100}, "0123456789"...), 11},
		"end after the file": {[]byte{0x80}, 2},
		"large record":       {append(large, make([]byte, 2*maxRecord+1)...), int64(len(large)) + 2*maxRecord + 1},
	} {
		file, err := os.Create(filepath.Join(t.TempDir(), "section"))
		require.NoError(t, err)
		defer file.Close()
		_, err = file.Write(test.section)
		require.NoError(t, err)
		f := File{file: file, size: int64(len(test.section)), seed: maphash.MakeSeed()}
		f.Shards = []Shard{{End: test.end}}
		for chunk := range slices.Chunk(test.section, chunkSize) {
			f.chunks = append(f.chunks, maphash.Bytes(f.seed, chunk))
		}
		err = f.Visit(0, func(contract.Member, map[string]string) bool { return true })
		if !errors.Is(err, errRecord) {
			t.Errorf("%s: got %v, want %v", name, err, errRecord)
		}
	}
}

// TestNoRegularFile: what isn't a regular file is refused by name, and at once.
func TestNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for _, path := range []string{dir, fifo, "/dev/zero"} {
		if _, err := Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), path+" is no regular file") {
			t.Errorf("%s: got %v, want that it is no regular file", path, err)
		}
	}
}

// TestChangedWhileRead writes to a file after its SHA-256 was computed: what was changed is not applied.
func TestChangedWhileRead(t *testing.T) {
	client, path := fill(t, 1), filepath.Join(t.TempDir(), "snapshot")
	_, err := Write(t.Context(), client, contract.Keyspace{}, path)
	require.NoError(t, err)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, changed := range map[string][]byte{"cut": content[:len(content)/2], "emptied": nil,
		"changed": bytes.Replace(content, []byte("image/png"), []byte("text/html"), 1)} {
		require.NoError(t, os.WriteFile(path, content, 0o600))
		f := open(t, path)
		require.NoError(t, os.WriteFile(path, changed, 0o600))
		err := f.Visit(0, func(m contract.Member, _ map[string]string) bool {
			t.Errorf("%s: got %v", name, m)
			return true
		})
		if !errors.Is(err, errChanged) {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
}

// TestLostMeanwhile: a snapshot of data that Redis loses meanwhile is not registered.
func TestLostMeanwhile(t *testing.T) {
	var keys contract.Keys
	for name, command := range map[string][]any{
		"another epoch": {"SET", keys.DataEpochKey(), "beef"},
		"lower":         {"SET", keys.SeqKey(), 2},
		"log lost":      {"HSET", keys.ChainKey(), contract.ChainLost, 3},
		"another write": {"HSET", keys.ChainKey(), contract.ChainField(12),
			contract.Link{Seq: 12, Digest: strings.Repeat("0", 40)}.String()},
	} {
		client := fill(t, 10)
		lost := sync.OnceFunc(func() { require.NoError(t, client.Do(t.Context(), command...).Err()) })
		w, err := create(t.Context(), client, contract.Keyspace{}, writerFunc(func(b []byte) (int, error) {
			lost()
			return len(b), nil
		}))
		if !errors.Is(err, errGone) || client.Exists(t.Context(), contract.Keys{}.SnapshotsKey()).Val() != 0 {
			t.Errorf("%s: got %+v, %v; want an error, and nothing registered", name, w, err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestHTTP writes and reads a snapshot by HTTP.
func TestHTTP(t *testing.T) {
	var stored []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch {
		case user != "u" || password != "secret":
			w.WriteHeader(http.StatusForbidden)
		case r.Method == http.MethodPut && r.ContentLength > 0:
			stored, _ = io.ReadAll(r.Body)
		case r.Method == http.MethodGet:
			w.Write(stored)
		}
	}))
	defer server.Close()
	t.Setenv("TMPDIR", t.TempDir())
	client, source := fill(t, 10), strings.Replace(server.URL, "://", "://u:secret@", 1)+"/s?signature=secret"
	w, err := Write(t.Context(), client, contract.Keyspace{}, source)
	require.NoError(t, err)
	f := open(t, source)
	if got := f.records(t, 0); len(got) != 12 || f.SHA256 != w.SHA256 {
		t.Errorf("got %d records, SHA-256 %s; want 12, %s", len(got), f.SHA256, w.SHA256)
	}
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	if len(left) != 0 {
		t.Errorf("got %v left in the temporary directory, want nothing", left)
	}
	server.Close()
	for _, bad := range []string{source, strings.Replace(source, "u:", "v:", 1), "ftp://u:secret@h/", "s3://secret",
		"s3://b/k?secret", "http://u:secret@%zz/"} {
		for what, err := range map[string]error{
			"read":  func() error { _, err := Open(t.Context(), bad); return err }(),
			"write": func() error { _, err := Write(t.Context(), client, contract.Keyspace{}, bad); return err }(),
		} {
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s %s: got %v, want an error without secrets", what, bad, err)
			}
		}
	}
}

// TestSlowStore: a store without a next byte, or with too few bytes, is given up; a long download passes.
func TestSlowStore(t *testing.T) {
	before := patience
	patience = time.Second
	t.Cleanup(func() { patience = before })
	write := func(w http.ResponseWriter, bytes int) {
		w.Write(make([]byte, bytes))
		w.(http.Flusher).Flush()
	}
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"no answer": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, errSlow.Error()},
		"no byte more": {func(w http.ResponseWriter, r *http.Request) {
			write(w, 10*slowest) // enough for 10 s
			<-r.Context().Done()
		}, errSlow.Error()},
		"bytes": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				write(w, 1)
				<-time.After(patience / 30)
			}
		}, errSlow.Error()},
		"longer than patience": {func(w http.ResponseWriter, _ *http.Request) {
			write(w, 10*slowest)
			for range 20 {
				write(w, 1)
				<-time.After(patience / 10)
			}
		}, "no snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(test.answer))
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), await.Deadline)
			defer cancel()
			if _, err := Open(ctx, server.URL); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestS3 writes and reads a snapshot by S3, in several parts.
func TestS3(t *testing.T) {
	if testing.Short() {
		t.Skip("long form: builds a server; TestHTTP")
	}
	binary, err := exec.Command("../../scripts/install-s3.sh").Output()
	if err != nil {
		t.Fatalf("install-s3.sh: %v", err)
	}
	data, address := t.TempDir(), redistest.FreeAddress(t)
	require.NoError(t, os.Mkdir(filepath.Join(data, "backups"), 0o700))
	t.Setenv("AWS_ENDPOINT_URL", "http://"+address)
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "gatehouse")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "gatehouse-secret")
	server := exec.Command(strings.TrimSpace(string(binary)), "--access", "gatehouse", "--secret", "gatehouse-secret",
		"--port", address, "posix", data)
	require.NoError(t, server.Start())
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	await.Until(t, "the server", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	const source = "s3://backups/fleet/gatehouse.snapshot"
	if _, err := Open(t.Context(), source); err == nil || !strings.Contains(err.Error(), "key does not exist") {
		t.Errorf("got %v, want that there is none", err)
	}
	client := fill(t, 1)
	p := publish.New(client)
	for i := range 40 {
		_, err := p.Put(t.Context(), publish.Object{Key: fmt.Sprint("/large/", i), ContentType: "image/png",
			Body: bytes.Repeat([]byte{byte(i)}, 1<<20)})
		require.NoError(t, err)
	}
	w, err := Write(t.Context(), client, contract.Keyspace{}, source)
	require.NoError(t, err)
	f := open(t, source)
	if got := f.records(t, 0); len(got) != 43 || f.SHA256 != w.SHA256 || w.Bytes < 2*partSize {
		t.Errorf("got %d records of %d bytes, SHA-256 %s; want 43 of more than two parts, %s", len(got), w.Bytes, f.SHA256,
			w.SHA256)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
	if _, err := Open(t.Context(), source); err == nil || strings.Contains(err.Error(), "wrong-secret") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// TestWriteFails: what can't be written is not left behind, and an earlier snapshot stays.
func TestWriteFails(t *testing.T) {
	client, directory := fill(t, 1), t.TempDir()
	path := filepath.Join(directory, "snapshot")
	require.NoError(t, os.WriteFile(path, []byte("before"), 0o600))
	require.NoError(t, client.HSet(t.Context(), contract.Keys{}.ChainKey(), "lost", "3").Err())
	_, err := Write(t.Context(), client, contract.Keyspace{}, path)
	content, _ := os.ReadFile(path)
	left, _ := os.ReadDir(directory)
	if !errors.Is(err, errLost) || string(content) != "before" || len(left) != 1 {
		t.Errorf("got %v, %q and %d files; want an error, and the file of before", err, content, len(left))
	}
	_, err = Write(t.Context(), client, contract.Keyspace{Shards: 2}, path)
	if !errors.As(err, new(*contract.ShardsError)) {
		t.Errorf("got %v, want a refusal of the number of shards", err)
	}
}
