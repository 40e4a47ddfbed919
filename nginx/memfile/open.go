//go:build linux

package memfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	magic    = 0x6768_6d65_6d66_0001 // the version is in the last two bytes
	headSize = 4096
	regions  = 3 // objects, bodies, verdicts

	// MinSize and MaxSize bound the size of a file.
	MinSize = 64 << 10
	MaxSize = 1 << 40
)

type header struct {
	magic      uint64
	size       uint64
	resets     atomic.Uint64
	confirmed  atomic.Uint64
	guard      atomic.Uint64
	state      place
	guardPlace place
	_          [128 - 7*8]byte // readers of the fields above don't share a cache line with the writer

	writing   atomic.Uint64
	firstFree uint32
	free      atomic.Uint32
}

// Locked bytes of the file.
const (
	writerByte = 0 // by the writer, or by the opener
	userByte   = 1 // by each user, shared
)

// After a replacement in between, the file is opened again, up to attempts times. A writer waits lockWait for a lock,
// an opener openWait: another worker may be reserving a large file, or finding the free pages. Reopen has a user with
// requests to answer, and waits reopenWait.
const (
	attempts   = 100
	lockWait   = time.Second
	openWait   = time.Minute
	reopenWait = 10 * time.Millisecond
	lockStep   = 50 * time.Microsecond
)

// Open maps the file at path, of size bytes, and creates a missing file. A file of another size or layout, an
// incomplete file, or a file that others may write to, is replaced; its users, if any, keep the old file to themselves.
func Open(path string, size int64) (*File, error) { return open(path, size, openWait) }

// open is Open with a bound of the time for which a lock is waited for.
func open(path string, size int64, wait time.Duration) (*File, error) {
	if size < MinSize || size > MaxSize {
		return nil, fmt.Errorf("memory file %s: %d bytes are out of %d to %d", path, size, MinSize, MaxSize)
	}
	for range attempts {
		if f, err := openOnce(path, size, wait); f != nil || err != nil {
			return f, err
		}
	}
	return nil, fmt.Errorf("memory file %s: it is replaced again and again: do all users give it the same size?", path)
}

// openOnce returns nil if the caller must try again.
func openOnce(path string, size int64, wait time.Duration) (f *File, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if f == nil {
			file.Close() // with its locks
		}
	}()
	if err := waitFor(file, writerByte, wait); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("memory file %s: it is not a regular file", path)
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(info, now) {
		return nil, nil
	}
	first := setLock(file, unix.F_WRLCK, userByte) == nil
	var head [16]byte
	_, err = file.ReadAt(head[:], 0)
	own := ownFile(info)
	if err != nil || !own || info.Size() != size || binary.NativeEndian.Uint64(head[:]) != magic ||
		binary.NativeEndian.Uint64(head[8:]) != uint64(size) {
		if first && own {
			file.Truncate(0) // nobody maps the old file, and the disk may lack room for two
		}
		return nil, createFile(path, size)
	}
	if first {
		if err := reservePages(file, size); err != nil {
			return nil, err
		}
	}
	if err := setLock(file, unix.F_RDLCK, userByte); err != nil {
		return nil, lockError(file, err)
	}
	if f, err = mapFile(file, size); err != nil {
		return nil, err
	}
	if first {
		f.confirmed.Store(0)
		f.repair()
		f.writing.Store(0)
	}
	setLock(file, unix.F_UNLCK, writerByte) // can't fail
	return f, nil
}

// ownFile reports whether a file has a single name, and only this user can write to it: another user could write
// verdicts.
func ownFile(info os.FileInfo) bool {
	of, ok := info.Sys().(*syscall.Stat_t)
	return ok && of.Nlink == 1 && of.Uid == uint32(os.Geteuid()) && of.Mode&0o022 == 0
}

// reservePages has the file system reserve all pages of a file: without memory, a missing page would end the process
// that touches the page.
func reservePages(file *os.File, size int64) error {
	if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
		return fmt.Errorf("memory file %s: reserve %d bytes: %w", file.Name(), size, err)
	}
	return nil
}

// createFile puts a new file at path. The old file is locked.
func createFile(path string, size int64) error {
	temporary := path + ".new"
	os.Remove(temporary) // of a killed opener
	file, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := reservePages(file, size); err != nil {
		os.Remove(temporary)
		return err
	}
	head := binary.NativeEndian.AppendUint64(nil, magic)
	head = binary.NativeEndian.AppendUint64(head, uint64(size))
	if _, err = file.WriteAt(head, 0); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func mapFile(file *os.File, size int64) (*File, error) {
	mem, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("memory file %s: map %d bytes: %w", file.Name(), size, err)
	}
	f := &File{file: file, mem: mem, header: (*header)(unsafe.Pointer(unsafe.SliceData(mem)))}
	// A place needs at least one page if it has a record, so each region has as many places as pages exist.
	each := int(size-headSize-pageSize) / (placesIn*(pageSize+4) + 4*regions)
	tables, pages := regions*each, placesIn*each
	f.tables = unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&mem[headSize])), tables)
	f.links = unsafe.Slice((*uint32)(unsafe.Pointer(&mem[headSize+4*tables])), pages)
	from := (headSize + 4*tables + 4*pages + pageSize - 1) / pageSize * pageSize
	f.pages = mem[from:][:pageSize*pages]
	return f, nil
}

// Bytes of a sidecar beyond its budget.
const (
	perBody    = pageSize - 92 + 16         // rest of the last page, of which the budget counts 92; two entries of a table
	perObject  = pageSize/4 + 4             // a fourth of a bucket, whose last page has room left
	perVerdict = pageSize/4 + 88 + 37 + 128 // likewise; an allow and a deny; four devices; permission names
	passing    = 7 << 20                    // bodies not blanked yet, and a batch
)

// SizeFor returns a size in which every push has room, for a sidecar's memory.bytes, memory.objects and
// memory.verdicts.
func SizeFor(budget, objects, verdicts int64) int64 {
	bodies := min(4*objects, budget/140) // of the smallest ones
	pages := (budget + bodies*perBody + objects*perObject + verdicts*perVerdict + passing) / pageSize
	return headSize + pageSize + (pages+placesIn)*(pageSize+4) + (pages/placesIn+1)*4*regions
}

// IsReplaced reports whether another file, or none, is at the path. Users of the old file no longer share memory with
// users of the path from now on.
func (f *File) IsReplaced() bool {
	var here, there unix.Stat_t
	return unix.Fstat(int(f.file.Fd()), &here) != nil || unix.Lstat(f.file.Name(), &there) != nil ||
		here.Ino != there.Ino || here.Dev != there.Dev
}

// Reopen maps the file now at the path, and creates a missing file. It fails while another process opens the file. The
// caller closes f after the last use.
func (f *File) Reopen() (*File, error) { return open(f.file.Name(), int64(len(f.mem)), reopenWait) }

// Close ends the use of the file. No method may run, and no record may be used any more.
func (f *File) Close() error {
	return errors.Join(unix.Munmap(f.mem), f.file.Close())
}

// lockWriter waits until no other writer holds the lock, and finds the free pages if the last writer was killed.
func (f *File) lockWriter() error {
	f.mu.Lock()
	if err := waitFor(f.file, writerByte, lockWait); err != nil {
		f.mu.Unlock()
		return err
	}
	if f.writing.Load() != 0 {
		f.repair()
	}
	return nil
}

func (f *File) unlockWriter() {
	setLock(f.file, unix.F_UNLCK, writerByte) // can't fail
	f.mu.Unlock()
}

// waitFor waits for the lock on a byte, and takes the lock.
func waitFor(file *os.File, at int64, most time.Duration) error {
	for begin := time.Now(); ; time.Sleep(lockStep) {
		err := setLock(file, unix.F_WRLCK, at)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) || time.Since(begin) > most {
			return lockError(file, err)
		}
	}
}

func lockError(file *os.File, err error) error {
	return fmt.Errorf("memory file %s: lock: %w", file.Name(), err)
}

// setLock locks or unlocks a byte of an open file, until the file is closed. Unlike flock, it locks single bytes;
// unlike other locks of fcntl, the lock belongs to the open file, not to the process.
func setLock(file *os.File, kind int16, at int64) error {
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: at, Len: 1})
}
