package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/link"
)

// tree writes files into a new directory, long enough ago to be settled.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}
	return dir
}

func write(t *testing.T, name, content string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	require.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(content), 0o600),
		os.Chtimes(name, old, old)))
}

// keys returns the keys of all objects.
func (s *shell) keys() []string {
	var keys []string
	for _, line := range strings.Split(s.ok("", "list"), "\n")[1:] {
		if key, _, _ := strings.Cut(line, " "); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestSync publishes a directory, then changed files, then changed flags.
func TestSync(t *testing.T) {
	s := newShell(t)
	dir := tree(t, map[string]string{"index.html": "<p>", "a.css": "p{}", "sub/b.json": "{}", "sub/index.html": "<b>"})
	sync := func(want string, flags ...string) string {
		t.Helper()
		out := s.ok("", append([]string{"sync", dir, "/site", "--delete"}, flags...)...)
		if !strings.HasSuffix(out, want+"\n") {
			t.Errorf("sync %v: %q, want %q", flags, out, want)
		}
		return out
	}
	out := sync("6 objects: 6 to write, 0 unchanged, 0 to delete, 0 failed; nothing was written", "--dry-run")
	if !strings.HasPrefix(out,
		"put /site/a.css\nput /site/sub/b.json\nput /site/index.html\nput /site/\n") || len(s.keys()) > 0 {
		t.Errorf("dry run: %q", out)
	}
	sync("6 objects: 6 written, 0 unchanged, 0 deleted, 0 failed")
	want := []string{"/site/", "/site/a.css", "/site/index.html", "/site/sub/", "/site/sub/b.json", "/site/sub/index.html"}
	if got := s.keys(); !slices.Equal(got, want) {
		t.Errorf("keys %q", got)
	}
	if head := s.ok("", "get", "/site/sub/", "--head"); !strings.Contains(head, "text/html; charset=utf-8") {
		t.Error(head)
	}
	sync("6 objects: 0 written, 6 unchanged, 0 deleted, 0 failed")
	write(t, filepath.Join(dir, "a.css"), "p{color:red}")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "sub")))
	out = sync("3 objects: 1 to write, 2 unchanged, 3 to delete, 0 failed; nothing was written", "--dry-run")
	if !strings.Contains(out,
		"\ndelete /site/sub/\n") {
		t.Errorf("dry run: %q", out)
	}
	lines := strings.Split(strings.TrimSpace(s.ok("", "sync", dir, "/site/", "--delete", "--json")), "\n")
	var first, last syncLine
	err := errors.Join(json.Unmarshal([]byte(lines[0]), &first), json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	if err != nil || len(lines) != 4 ||
		first != (syncLine{Action: "put", Key: "/site/a.css", File: "a.css", Version: 2}) ||
		last != (syncLine{Action: "delete", Key: "/site/sub/index.html", Version: 2}) {
		t.Errorf("%q: %v", lines, err)
	}
	if got := s.ok("", "get", "/site/a.css"); got != "p{color:red}" {
		t.Errorf("a.css: %q", got)
	}
	sync("3 objects: 3 written, 0 unchanged, 0 deleted, 0 failed", "--tag", "release", "--tag", "docs")
	sync("3 objects: 0 written, 3 unchanged, 0 deleted, 0 failed", "--tag", "docs,release")
	sync("3 objects: 3 written, 0 unchanged, 0 deleted, 0 failed", "--ttl", "1h")
	sync("3 objects: 0 written, 3 unchanged, 0 deleted, 0 failed", "--ttl", "1h")
	s.redis.HSet(keys.ObjectKey("/site/"), contract.FieldPublished,
		fmt.Sprint(time.Now().Add(-31*time.Minute).UnixMilli()))
	sync("3 objects: 1 written, 2 unchanged, 0 deleted, 0 failed", "--ttl", "1h")
	s.fails(2, "gatehousectl sync", "", "put", "/site", "--file", dir)
	s.fails(2, "without a query", "", "sync", dir, "/site?a=b")
	s.fails(2, `want "/a/b/"`, "", "sync", dir, "/a//b")
	s.fails(1, "no such file", "", "sync", filepath.Join(dir, "none"), "/site")
	s.redis.Close()
	s.fails(1, "connection refused", "", "sync", dir, "/site")
}

// TestSyncNames: the key of each file, and files that fail without stopping the sync.
func TestSyncNames(t *testing.T) {
	s := newShell(t)
	files := map[string]string{ // want
		"a b.txt": "/a%20b.txt", "ü.txt": "/%C3%BC.txt", "100%.txt": "/100%25.txt", "q?.txt": "/q%3F.txt",
		"h#.txt": "/h%23.txt", "~(x)!*'&=+$,;:@[]|.txt": "/~(x)!*'&=+$,;:@[]|.txt", "%41.txt": "/%2541.txt",
		".well-known/security.txt": "/.well-known/security.txt", ".git/config": "", "sub/.env": "",
		"latin\xe9.txt": "/latin%E9.txt", "...": "",
	}
	dir := tree(t, files)
	bad := map[string]string{"back\\slash": "no edge looks it up", "large": "1048577 bytes, at most 1048576",
		"out": "escapes", "dir": "no regular file", "loop": "too many", "fifo": "no regular file",
		strings.Repeat(strings.Repeat("x", 250)+"/", 8) + strings.Repeat("y", 200): "2048"}
	for name := range bad {
		write(t, filepath.Join(dir, name), "")
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"out", "dir", "loop", "fifo"} {
		require.NoError(t, os.Remove(in(name)))
	}
	require.NoError(t, errors.Join(os.Symlink("/etc/hosts", in("out")), os.Symlink(".well-known", in("dir")),
		os.Symlink("loop", in("loop")), syscall.Mkfifo(in("fifo"), 0o600), os.Symlink("a b.txt", in("link.txt")),
		os.Truncate(in("large"), 1<<20+1), os.Symlink(dir, dir+".link")))
	s.ok("", "put", "/gone", "--file", in("a b.txt"))
	r := s.run("", "sync", dir+".link", "/", "--delete")
	if want := fmt.Sprintf("%d objects: 10 written, 0 unchanged, 0 deleted, %d failed; 3 hidden skipped\n", 10+len(bad),
		len(bad)); r.code != 1 || r.stdout != want {
		t.Errorf("%+v, want %q", r, want)
	}
	for name, want := range bad {
		i := strings.Index(r.stderr, strings.Trim(printable(name), `"`))
		if line, _, _ := strings.Cut(r.stderr[max(i, 0):], "\n"); i < 0 || !strings.Contains(line, want) {
			t.Errorf("%.30s: %q, want %q", name, line, want)
		}
	}
	want := []string{"/gone", "/link.txt"}
	for _, key := range files {
		if key != "" {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	if got := s.keys(); !slices.Equal(got, want) ||
		!strings.Contains(r.stderr, "nothing was deleted, because files failed") {
		t.Errorf("keys %q, want %q", got, want)
	}
}

// TestSyncLanguage: with --language keys end with the language, and objects in other languages stay.
func TestSyncLanguage(t *testing.T) {
	s := newShell(t)
	for _, key := range []string{"/site/old", "/site/old#en", "/site/old#de", "/site/?a=1#de"} {
		s.ok("x", "put", key, "--file", "-")
	}
	dir := tree(t, map[string]string{"index.html": "<p>", "a.css": "p{}", "en": "x"})
	sync := func(want string) {
		t.Helper()
		out := s.ok("", "sync", dir, "/site", "--delete", "--language", "DE", "--host", "A.example")
		if !strings.HasSuffix(out, want+"\n") {
			t.Errorf("with a host: %q, want %q", out, want)
		}
		if out = s.ok("", "sync", dir, "/site", "--delete", "--language", "DE"); !strings.HasSuffix(out, want+"\n") {
			t.Errorf("%q, want %q", out, want)
		}
	}
	s.ok("x", "put", "//:a.example/site/old#de", "--file", "-")
	sync("4 objects: 4 written, 0 unchanged, 1 deleted, 0 failed")
	sync("4 objects: 0 written, 4 unchanged, 0 deleted, 0 failed")
	want := []string{"//:a.example/site/#de", "//:a.example/site/a.css#de", "//:a.example/site/en#de",
		"//:a.example/site/index.html#de", "/site/#de", "/site/?a=1#de", "/site/a.css#de", "/site/en#de",
		"/site/index.html#de", "/site/old", "/site/old#en"}
	if got := s.keys(); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	s.fails(2, "/site/#d", "", "sync", dir, "/site", "--language", "d")
}

// TestSyncStatusAndHeaders: an object with a status or headers, unlike any file, is written again.
func TestSyncStatusAndHeaders(t *testing.T) {
	s := newShell(t)
	dir := tree(t, map[string]string{"a.txt": "a"})
	s.ok("", "sync", dir, "/")
	for _, flags := range [][]string{{"--status", "404"}, {"--header", "x-a: b"}} {
		s.ok("a", append([]string{"put", "/a.txt", "--content-type", "text/plain; charset=utf-8", "--file", "-"},
			flags...)...)
		for _, want := range []string{"1 written, 0 unchanged", "0 written, 1 unchanged"} {
			if got := s.ok("", "sync", dir, "/"); !strings.Contains(got, want) {
				t.Errorf("%s: %q, want %s", flags, got, want)
			}
		}
	}
}

// TestSyncDeletes only under the prefix, what can come from a file, and not too much.
func TestSyncDeletes(t *testing.T) {
	s := &shell{t, nil, map[string]string{"GATEHOUSE_REDIS": redistest.Start(t)}}
	kept := []string{"//fleet/a", "//:h/a", "/a?x=1", "/b", "/site", "/sitemap", "@d/a"}
	for _, key := range kept {
		s.ok("x", "put", key, "--file", "-")
	}
	s.ok("x", "put", "/site/old", "--file", "-")
	dir := tree(t, map[string]string{"new": "1"})
	s.ok("", "sync", dir, "/site", "--delete")
	want := []string{"//:h/a", "//fleet/a", "/a?x=1", "/b", "/site", "/site/new", "/sitemap", "@d/a"}
	if !slices.Equal(s.keys(), want) {
		t.Errorf("keys %q, want %q", s.keys(), want)
	}
	// The root: other virtual hosts, devices and queries stay.
	s.ok("", "sync", dir, "/", "--delete")
	if want := []string{"//:h/a", "//fleet/a", "/a?x=1", "/new", "@d/a"}; !slices.Equal(s.keys(), want) {
		t.Errorf("keys %q, want %q", s.keys(), want)
	}
	s.ok("", "sync", dir, "/", "--delete", "--virtual-host", "fleet")
	if want := []string{"//:h/a", "//fleet/new", "/a?x=1", "/new", "@d/a"}; !slices.Equal(s.keys(), want) {
		t.Errorf("keys %q, want %q", s.keys(), want)
	}

	empty := t.TempDir()
	s.fails(1, "1 of the 1 objects under //fleet/ have no file", "", "sync", empty, "/", "--delete", "--virtual-host",
		"fleet")
	s.ok("", "sync", empty, "/", "--virtual-host", "fleet")
	s.ok("", "sync", empty, "/", "--delete", "--virtual-host", "fleet", "--max-delete", "1")
	files := map[string]string{}
	for i := range 102 {
		files[fmt.Sprint(i)] = "x"
	}
	many := tree(t, files)
	s.ok("", "sync", many, "/many")
	before := s.keys()
	r := s.run("", "sync", dir, "/many", "--delete")
	if r.code != 1 || !strings.Contains(r.stderr, "102 of the 102 objects under /many/") ||
		!strings.Contains(r.stderr, "--max-delete 102") || !slices.Equal(s.keys(), before) {
		t.Errorf("%+v", r)
	}
	r = s.run("", "sync", dir, "/many", "--delete", "--dry-run")
	if r.code != 1 || strings.Count(r.stdout, "delete /many/") != 102 ||
		!strings.Contains(r.stderr, "--max-delete 102") {
		t.Errorf("%+v", r)
	}
	write(t, filepath.Join(dir, "0"), "x")
	write(t, filepath.Join(dir, "1"), "x")
	got := s.ok("", "sync", dir, "/many", "--delete")
	if got != "3 objects: 1 written, 2 unchanged, 100 deleted, 0 failed\n" {
		t.Errorf("a hundred: %q", got)
	}
}

// TestSyncDeletesWhatWasListed: an object published by another writer after the listing stays.
func TestSyncDeletesWhatWasListed(t *testing.T) {
	s := newShell(t)
	s.ok("x", "put", "/site/changed", "--file", "-")
	s.ok("x", "put", "/site/gone", "--file", "-")
	slow, err := link.New("127.0.0.1:0", s.redis.Addr())
	require.NoError(t, err)
	t.Cleanup(slow.Close)
	var once sync.Once
	slow.SetFilter(func(dst io.Writer, src io.Reader) error {
		reply := make([]byte, 64<<10)
		for {
			n, err := src.Read(reply)
			if bytes.HasPrefix(reply[:n], []byte("*2\r\n:")) { // of the first write
				once.Do(func() { s.ok("of another", "put", "/site/changed", "--file", "-") })
			}
			if _, err := dst.Write(reply[:n]); err != nil {
				return err
			}
			if err != nil {
				return err
			}
		}
	})
	for i, want := range []string{
		"1 objects: 1 written, 0 unchanged, 1 deleted, 0 failed; 1 changed since they were listed, and were not deleted\n",
		"1 objects: 0 written, 1 unchanged, 1 deleted, 0 failed\n",
	} {
		dir := tree(t, map[string]string{"new": "1"})
		got := s.ok("", "sync", dir, "/site", "--delete", "--redis", "redis://"+slow.Address())
		if got != want {
			t.Errorf("run %d: %q, want %q", i, got, want)
		}
		if kept := slices.Contains(s.keys(), "/site/changed"); kept != (i == 0) {
			t.Errorf("run %d: keys %q", i, s.keys())
		}
	}
}

// TestSyncWhileWritten: of a file that is being written, a consistent state is published.
func TestSyncWhileWritten(t *testing.T) {
	s := newShell(t)
	dir := tree(t, map[string]string{"page": strings.Repeat("0", 1<<20)})
	for range 5 {
		var writer sync.WaitGroup
		writer.Go(func() { // in place
			file, err := os.OpenFile(filepath.Join(dir, "page"), os.O_RDWR, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer file.Close()
			for i := range 20 {
				if _, err := file.WriteAt(bytes.Repeat([]byte{'a' + byte(i)}, 1<<20), 0); err != nil {
					t.Error(err)
				}
			}
		})
		r := s.run("", "sync", dir, "/")
		writer.Wait()
		if r.code != 0 && !strings.Contains(r.stderr, "page: changes while it is read") {
			t.Errorf("%+v", r)
		}
		if got := s.run("", "get", "/page").stdout; len(got) != 1<<20 || strings.Trim(got, got[:1]) != "" {
			t.Error("a torn page")
		}
	}
}

// TestSyncReadsNoFIFO: a file that a FIFO without a writer has replaced, since the files were found, fails.
func TestSyncReadsNoFIFO(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "page")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	read := make(chan error, 1)
	go func() {
		_, err := (&syncer{root: root}).readStable("page")
		read <- err
	}()
	select {
	case err := <-read:
		if !errors.Is(err, errNotRegular) {
			t.Errorf("got %v, want %v", err, errNotRegular)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for a writer")
	}
}

// info is a file's state.
type info struct {
	os.FileInfo
	size int64
	at   time.Time
}

func (i info) Size() int64        { return i.size }
func (i info) ModTime() time.Time { return i.at }

func TestWhole(t *testing.T) {
	at := time.Unix(1e9, 0)
	for _, test := range []struct {
		read          int
		before, after info
		now           time.Time
		want          bool
	}{
		{3, info{size: 3, at: at}, info{size: 3, at: at}, at.Add(time.Second), true},
		{3, info{size: 3, at: at}, info{size: 3, at: at}, at.Add(-time.Second), true}, // another clock
		{3, info{size: 3, at: at}, info{size: 3, at: at}, at.Add(settleTime), false},
		{3, info{size: 3, at: at}, info{size: 3, at: at.Add(1)}, at.Add(time.Second), false},
		{2, info{size: 3, at: at}, info{size: 3, at: at}, at.Add(time.Second), false},
		{3, info{size: 2, at: at}, info{size: 3, at: at}, at.Add(time.Second), false},
	} {
		if got := isStableRead(test.read, test.before, test.after, test.now); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// TestParallelSyncs: after two concurrent syncs, each object is from either sync.
func TestParallelSyncs(t *testing.T) {
	url := redistest.Start(t)
	s := newShell(t)
	s.env["GATEHOUSE_REDIS"] = url
	files := [2]map[string]string{{}, {}}
	for i := range 300 {
		for n := range files {
			files[n][fmt.Sprint(i)] = fmt.Sprint(n)
		}
	}
	dirs := [2]string{tree(t, files[0]), tree(t, files[1])}
	var both sync.WaitGroup
	for n := range dirs {
		both.Go(func() {
			if r := s.run("", "sync", dirs[n], "/", "--delete"); r.code != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
	both.Wait()
	if got := s.keys(); len(got) != 300 {
		t.Errorf("%d objects", len(got))
	}
	s.ok("", "sync", dirs[0], "/")
	if got := s.ok("", "sync", dirs[0], "/"); !strings.Contains(got, "0 written, 300 unchanged") {
		t.Error(got)
	}
}

// TestKilledSync kills syncs at random moments and continues them: each object is always an old or a new object, and in
// the end Redis equals the directory.
func TestKilledSync(t *testing.T) {
	t.Parallel()
	files, wanted := 10_000, 20
	if testing.Short() {
		files, wanted = 1000, 3
	}
	client := redis.NewClient(&redis.Options{Addr: redistest.StartServer(t).Address, ReadTimeout: time.Minute})
	t.Cleanup(func() { client.Close() })
	publisher := publish.New(client, publish.Shards(4))
	dir := t.TempDir()
	content := map[string]string{} // by key
	generation := 0
	change := func() (before map[string]string) {
		generation++
		before = maps.Clone(content)
		for i := range files {
			name := fmt.Sprintf("%d/%d.json", i%50, i)
			switch key := "/site/" + name; {
			case generation > 1 && rand.IntN(3) > 0:
			case generation > 1 && rand.IntN(20) == 0 && content[key] != "":
				delete(content, key)
				require.NoError(t, os.Remove(filepath.Join(dir, name)))
			default:
				content[key] = fmt.Sprintf(`{"file":%d,"generation":%d}`, i, generation)
				write(t, filepath.Join(dir, name), content[key])
			}
		}
		return before
	}
	// check fails unless each object is from before or content, after a whole sync from content.
	check := func(before map[string]string, whole bool) {
		t.Helper()
		found := map[string]bool{}
		for e, err := range publisher.List(t.Context(), "/") {
			require.NoError(t, err)
			found[e.Key] = true
			fits := func(body string, there bool) bool {
				return there && e.ETag == publish.ETag("application/json", []byte(body)) && e.Size == int64(len(body))
			}
			now, there := content[e.Key]
			old, was := before[e.Key]
			if !fits(now, there) && (whole || !fits(old, was)) {
				t.Fatalf("%s: %+v, want %q or %q", e.Key, e, now, old)
			}
		}
		for key := range content {
			if _, was := before[key]; !found[key] && (whole || was) {
				t.Fatalf("%s is missing", key)
			}
		}
	}
	work := meter{t: t, client: client}
	whole := 0 // commands of the last sync that nothing killed: the next kill is before so many
	kills := 0
	for first := true; first || kills < wanted; first = false {
		before := change()
		for kill := !first; ; kill = kill && rand.IntN(3) > 0 {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "sync", dir, "/site", "--delete")
			cmd.Env = append(os.Environ(), "GATEHOUSECTL_OF_TEST=1", "GATEHOUSE_REDIS_SHARDS=4",
				"GATEHOUSE_REDIS=redis://"+client.Options().Addr)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			limit := 0
			if kill {
				limit = 1 + rand.N(whole)
			}
			did, killed, err := work.run(cmd, limit)
			if err != nil && !killed {
				t.Fatalf("%v: %s", err, said.String())
			}
			if err == nil {
				whole = did
				break
			}
			kills++
			check(before, false)
		}
		check(before, true)
	}
	t.Logf("%d files, %d kills", files, kills)
	var got contract.Object
	for key, body := range content {
		var err error
		if got, err = publisher.Get(t.Context(), key); err != nil || string(got.Bodies[0].Bytes) != body {
			t.Fatalf("%s: %+v, %v", key, got, err)
		}
		break
	}
	if reflect.DeepEqual(got, contract.Object{}) {
		t.Error("nothing was compared")
	}
}
