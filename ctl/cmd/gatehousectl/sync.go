package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

const (
	// syncFiles and syncBytes bound the files read and written at once.
	syncFiles = 1024
	syncBytes = 4 << 20
	// indexFile is also published under the path of the directory.
	indexFile = "index.html"
)

type syncCmd struct {
	Dir       string   `arg:"" help:"The directory."`
	Prefix    string   `arg:"" help:"Path under which its files are published, such as /docs/."`
	Delete    bool     `help:"Also delete the objects under the prefix that have no file, unless a file failed."`
	MaxDelete int      `default:"-1" placeholder:"N" help:"Write nothing if more than this would be deleted. Default: a tenth of the objects under the prefix, at least 100; none if the directory has no files."`
	DryRun    bool     `help:"Print what would be written and deleted instead."`
	Tags      []string `name:"tag" placeholder:"TAG" help:"Tag for purges; may be repeated."`
	TTL       freshFor `name:"ttl" placeholder:"DURATION" help:"How long the objects are fresh, such as 90s; those past half of it are written again. Default: until they change."`

	keyFlags `embed:""`
	jsonFlag `embed:""`
}

// Run publishes the files of the directory.
func (cmd *syncCmd) Run(c *console) error {
	prefix := strings.TrimSuffix(cmd.Prefix, "/") + "/"
	if err := cmd.completeKey(&prefix); err != nil {
		return err
	}
	prefix, err := publish.CanonicalKey(prefix)
	if err != nil {
		return err
	}
	prefix, language := objectkey.CutLanguage(prefix) // the language ends each key
	if strings.Contains(prefix, "?") {
		return usagef("%q: want a path without a query", cmd.Prefix)
	}
	root, err := os.OpenRoot(cmd.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	s := &syncer{syncCmd: cmd, console: c, root: root, prefix: prefix, language: language,
		progress: newProgress(c, "objects")}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		s.publisher = p
		return s.run(ctx)
	})
}

// syncer is a running sync.
type syncer struct {
	*syncCmd
	*console
	progress  progress
	publisher *publish.Publisher
	root      *os.Root // symbolic links can't leave the directory
	prefix    string   // canonical, without the language
	language  string   // "": none

	files  []syncFile
	failed int
	hidden int // number of skipped files and directories
	stored map[string]publish.Entry

	written, unchanged, deleted int
	changed                     int // not deleted, because changed since the listing
}

// syncFile is a file with the key of the file's object.
type syncFile struct{ name, key string }

// syncLine is a line of --json.
type syncLine struct {
	// Action is "put", "delete", "failed", or "changed": not deleted, because changed since the listing. In a dry run,
	// nothing is done.
	Action  string `json:"action"`
	Key     string `json:"key,omitempty"`
	File    string `json:"file,omitempty"` // path in the directory, with slashes
	Version uint64 `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

func (s *syncer) run(ctx context.Context) error {
	defer s.progress.clear()
	s.findFiles()
	if err := s.listStored(ctx); err != nil {
		return err
	}
	gone := s.objectsToDelete()
	tooMany := s.checkDeletions(len(gone))
	if tooMany != nil && !s.DryRun {
		return tooMany
	}
	s.progress.size = int64(len(s.files) + len(gone))
	// Pages come last, after the files that pages refer to.
	slices.SortStableFunc(s.files, func(a, b syncFile) int { return pageOrder(a) - pageOrder(b) })
	for files := range slices.Chunk(s.files, syncFiles) {
		if err := s.publishFiles(ctx, files); err != nil {
			return s.stoppedError(err)
		}
	}
	if s.failed > 0 && len(gone) > 0 {
		fmt.Fprintln(s.stderr, "nothing was deleted, because files failed")
		gone = nil
	}
	for entries := range slices.Chunk(gone, syncFiles) {
		if err := s.deleteBatch(ctx, entries); err != nil {
			return s.stoppedError(err)
		}
	}
	s.progress.clear()
	if !s.JSON {
		s.printSummary()
	}
	if s.failed > 0 {
		return fmt.Errorf("%s: %d failed", printable(s.Dir), s.failed)
	}
	return tooMany
}

// checkDeletions returns an error if more objects would be deleted than allowed.
func (s *syncer) checkDeletions(gone int) error {
	most := max(s.MaxDelete, 0)
	if s.MaxDelete < 0 && len(s.files) > 0 {
		most = max(100, len(s.stored)/10)
	}
	if gone <= most {
		return nil
	}
	return fmt.Errorf("%d of the %d objects under %s have no file in %s; nothing was written: "+
		"--max-delete %d deletes them", gone, len(s.stored), s.prefix, printable(s.Dir), gone)
}

func (s *syncer) printSummary() {
	done := fmt.Sprintf("%d written, %d unchanged, %d deleted, %d failed", s.written, s.unchanged, s.deleted, s.failed)
	if s.DryRun {
		done = fmt.Sprintf("%d to write, %d unchanged, %d to delete, %d failed; nothing was written", s.written,
			s.unchanged, s.deleted, s.failed)
	}
	if s.changed > 0 {
		done += fmt.Sprintf("; %d changed since they were listed, and were not deleted", s.changed)
	}
	if s.hidden > 0 {
		done += fmt.Sprintf("; %d hidden skipped", s.hidden)
	}
	fmt.Fprintf(s.stdout, "%d objects: %s\n", s.written+s.unchanged+s.failed, done)
}

func (s *syncer) stoppedError(err error) error {
	return fmt.Errorf("stopped after %d of %d objects; run it again to continue: %w", s.progress.done, s.progress.size,
		err)
}

// pageOrder is 1 for HTML files, otherwise 0.
func pageOrder(f syncFile) int {
	if ext := path.Ext(f.name); ext == ".html" || ext == ".htm" {
		return 1
	}
	return 0
}

// printLine prints a performed action or, in a dry run, a planned action.
func (s *syncer) printLine(line syncLine) {
	switch {
	case s.JSON:
		s.progress.clear()
		_ = json.NewEncoder(s.stdout).Encode(line)
	case line.Action == "failed":
		if s.failed <= maxPrinted {
			s.progress.clear()
			fmt.Fprintf(s.stderr, "%s: %s\n", printable(line.File+line.Key), printableLines(line.Error))
		}
		if s.failed == maxPrinted {
			fmt.Fprintln(s.stderr, "further errors are only counted")
		}
	case s.DryRun:
		fmt.Fprintln(s.stdout, strings.TrimSpace(line.Action+" "+line.Key))
	}
}

// recordFailure counts and prints an error of a file or, without a file, of a key.
func (s *syncer) recordFailure(f syncFile, err error) {
	s.failed++
	if f.name != "" {
		f.key = ""
	}
	s.printLine(syncLine{Action: "failed", File: f.name, Key: f.key, Error: err.Error()})
}

// findFiles adds the files of the directory.
func (s *syncer) findFiles() {
	_ = fs.WalkDir(s.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		base := path.Base(name)
		switch {
		case err != nil:
			s.recordFailure(syncFile{name: name}, withoutFileName(err))
		case base != "." && base[0] == '.' && base != ".well-known":
			s.hidden++
			if entry.IsDir() {
				return fs.SkipDir
			}
		case !entry.IsDir():
			s.addFile(name)
		}
		return nil
	})
}

var errNotRegular = errors.New("is no regular file, and no symbolic link to one in the directory")

// addFile adds a file, or records its failure.
func (s *syncer) addFile(name string) {
	info, err := s.root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		s.recordFailure(syncFile{name: name}, withoutFileName(err))
		return
	}
	key, err := publish.CanonicalKey(s.keyInLanguage(s.prefix + escapePath(name)))
	if err != nil {
		s.recordFailure(syncFile{name: name}, err)
		return
	}
	s.files = append(s.files, syncFile{name, key})
	if path.Base(name) == indexFile {
		key, _ = objectkey.CutLanguage(key)
		s.files = append(s.files, syncFile{name, s.keyInLanguage(strings.TrimSuffix(key, indexFile))})
	}
}

// keyInLanguage returns the key of the object for key in the language, if a language is set.
func (s *syncer) keyInLanguage(key string) string {
	if s.language == "" {
		return key
	}
	return publish.KeyOfLanguage(key, s.language)
}

// withoutFileName returns err without the file's name.
func withoutFileName(err error) error {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		return of.Err
	}
	return err
}

// escapePath returns the path of a file as clients send the path: escaped are the URL standard's path percent-encode
// set (url.spec.whatwg.org, section 1.3), %, \ and all but ASCII.
func escapePath(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || strings.IndexByte("\"#<>?^`{}%\\", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// listStored reads the entries under the prefix that can come from a file: without a query, and in no other language.
func (s *syncer) listStored(ctx context.Context) error {
	space, _ := objectkey.Split(s.prefix)
	s.stored = map[string]publish.Entry{}
	for entry, err := range s.publisher.List(ctx, s.prefix) {
		if err != nil {
			return err
		}
		key, language := objectkey.CutLanguage(entry.Key)
		if of, target := objectkey.Split(key); of == space && language == s.language && !strings.Contains(target, "?") {
			s.stored[entry.Key] = entry
		}
	}
	return nil
}

// objectsToDelete returns the objects to delete, as they were listed.
func (s *syncer) objectsToDelete() []publish.Entry {
	if !s.Delete {
		return nil
	}
	gone := maps.Clone(s.stored)
	for _, f := range s.files {
		delete(gone, f.key)
	}
	return slices.SortedFunc(maps.Values(gone), func(a, b publish.Entry) int { return strings.Compare(a.Key, b.Key) })
}

// publishFiles publishes files as far as they differ. It returns the error of other than single objects.
func (s *syncer) publishFiles(ctx context.Context, files []syncFile) error {
	for len(files) > 0 {
		n, size := 0, int64(0)
		for n < len(files) && (n == 0 || size < syncBytes) {
			if info, err := s.root.Stat(files[n].name); err == nil {
				size += min(info.Size(), limits.MaxBody)
			}
			n++
		}
		if err := s.publishBatch(ctx, files[:n]); err != nil {
			return err
		}
		files = files[n:]
		s.progress.show()
	}
	return nil
}

// publishBatch is publish for files that fit into memory.
func (s *syncer) publishBatch(ctx context.Context, files []syncFile) error {
	objects, errs := make([]publish.Object, len(files)), make([]error, len(files))
	same := make([]bool, len(files))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range files {
		group.Go(func() error {
			body, err := s.readStable(f.name)
			objects[i] = publish.Object{Key: f.key, Body: body, ContentType: detectContentType(f.name, f.key, body),
				TTL: s.TTL.Duration, Tags: s.Tags}
			errs[i], same[i] = err, err == nil && s.isUnchanged(objects[i])
			return nil
		})
	}
	_ = group.Wait()
	var changed []publish.Object
	var of []syncFile
	for i, f := range files {
		switch {
		case errs[i] != nil:
			s.recordFailure(f, withoutFileName(errs[i]))
		case same[i]:
			s.unchanged++
		default:
			changed, of = append(changed, objects[i]), append(of, f)
		}
	}
	var results []publish.Result
	if s.DryRun {
		results = make([]publish.Result, len(changed))
	} else {
		results = s.publisher.PutAll(ctx, changed)
	}
	var failed error
	for i, r := range results {
		switch {
		case r.Err == nil:
			s.written++
			s.printLine(syncLine{Action: "put", Key: changed[i].Key, File: of[i].name, Version: r.Version})
		case isRecordError(r.Err):
			s.recordFailure(of[i], r.Err)
		default:
			failed = r.Err
		}
	}
	s.updateProgress()
	return failed
}

// updateProgress sets the progress.
func (s *syncer) updateProgress() {
	s.progress.done = s.written + s.unchanged + s.deleted + s.changed + s.failed
	s.progress.bytes = int64(s.progress.done)
}

// isUnchanged reports whether what is stored is o, and stays so for a while.
func (s *syncer) isUnchanged(o publish.Object) bool {
	e, found := s.stored[o.Key]
	past := time.Now().UnixMilli() - e.PublishedMS
	tags := slices.Compact(slices.Sorted(slices.Values(o.Tags)))
	return found && e.ETag == publish.ETag(o.ContentType, o.Body) && e.ContentType == o.ContentType && !e.Stale &&
		e.TTLMS == o.TTL.Milliseconds() && slices.Equal(e.Tags, tags) && (e.TTLMS == 0 || past < e.TTLMS/2)
}

// readStable reads a file as it was at one time.
func (s *syncer) readStable(name string) ([]byte, error) {
	const attempts = 20
	for range attempts {
		body, before, after, err := s.readOnce(name)
		switch {
		case err != nil:
			return nil, err
		case after.Size() > limits.MaxBody:
			return nil, fmt.Errorf("%d bytes, at most %d are allowed", after.Size(), limits.MaxBody)
		}
		if isStableRead(len(body), before, after, time.Now()) {
			return body, nil
		}
		time.Sleep(settleTime)
	}
	return nil, errors.New("changes while it is read")
}

// settleTime is how long a file must not have been written: clocks of file systems are coarse.
const settleTime = 20 * time.Millisecond

// isStableRead reports whether nobody wrote to a file while size bytes of it were read.
func isStableRead(size int, before, after fs.FileInfo, now time.Time) bool {
	age := now.Sub(after.ModTime())
	return int64(size) == after.Size() && before.Size() == after.Size() && before.ModTime().Equal(after.ModTime()) &&
		(age < 0 || age > settleTime)
}

// readOnce reads a file, at most one byte more than an object may have.
func (s *syncer) readOnce(name string) (body []byte, before, after fs.FileInfo, err error) {
	// Without O_NONBLOCK, the open of a FIFO that has replaced the file would wait for a writer.
	file, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	defer file.Close()
	if before, err = file.Stat(); err == nil && !before.Mode().IsRegular() {
		err = errNotRegular
	}
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(file, limits.MaxBody+1))
	}
	if err == nil {
		after, err = file.Stat()
	}
	return body, before, after, err
}

// deleteBatch deletes objects that are still as they were listed. It returns the error of other than single objects.
func (s *syncer) deleteBatch(ctx context.Context, entries []publish.Entry) error {
	results := make([]publish.Result, len(entries))
	if !s.DryRun {
		results = s.publisher.DeleteAllIf(ctx, entries)
	}
	var failed error
	for i, r := range results {
		switch {
		case r.Err == nil:
			s.deleted++
			s.printLine(syncLine{Action: "delete", Key: entries[i].Key, Version: r.Version})
		case errors.Is(r.Err, publish.ErrStale):
			s.changed++
			if s.JSON {
				s.printLine(syncLine{Action: "changed", Key: entries[i].Key})
			}
		case isRecordError(r.Err):
			s.recordFailure(syncFile{key: entries[i].Key}, r.Err)
		default:
			failed = r.Err
		}
	}
	s.updateProgress()
	s.progress.show()
	return failed
}
