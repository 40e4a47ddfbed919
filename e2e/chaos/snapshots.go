package chaos

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/snapshot"
)

// snapshotEvery is how often a snapshot is written.
const snapshotEvery = 1500 * time.Millisecond

// snapshots writes the snapshots from which the first edge's sidecar starts. Every second one is forged.
type snapshots struct {
	client   redis.UniversalClient
	keyspace contract.Keyspace
	path     string
	writing  *sync.RWMutex // see writer

	written, forged int
}

// writeNext writes a snapshot, unless Redis can't be read now.
func (s *snapshots) writeNext(ctx context.Context) {
	s.writing.RLock()
	defer s.writing.RUnlock()
	if _, err := snapshot.Write(ctx, s.client, s.keyspace, s.path); err != nil {
		return
	}
	if s.written++; s.written%2 == 0 && s.forge() == nil {
		s.forged++
	}
}

// forge changes the bodies in the snapshot, and nothing by which a reader could tell but the file's SHA-256.
func (s *snapshots) forge() error {
	file, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	forged := s.path + ".forged"
	file = bytes.ReplaceAll(file, []byte("...\n"), []byte("!!!\n")) // the end of a body's first line
	if err := os.WriteFile(forged, file, 0o600); err != nil {
		return err
	}
	return os.Rename(forged, s.path)
}

// countStarts returns how many starts of the sidecar applied a snapshot, and how many refused it.
func (s *snapshots) countStarts() (applied, refused int) {
	log, _ := os.ReadFile(filepath.Join(filepath.Dir(s.path), "sidecar.log"))
	return bytes.Count(log, []byte("the snapshot was applied")), bytes.Count(log, []byte("the snapshot is not used"))
}
