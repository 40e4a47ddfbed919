package publisher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

const (
	maxTeamsFile = 1 << 20
	// defaultRate is how many records a second a team may write and read unless the file says otherwise.
	defaultRate = 100
	maxRate     = 100_000
	// defaultBytes is how many bytes a second a team may publish and read unless the file says otherwise. minBurstBytes is
	// the least burst in bytes: more than a batch takes at once.
	defaultBytes       = 10 << 20
	minBurstBytes      = 4 << 20
	minBytes, maxBytes = 64 << 10, 1 << 30
	// prefixesRate and prefixesBurst bound a team's purges of prefixes, a second and at once. For each purge, each sidecar
	// scans all its objects, while revocations wait.
	prefixesRate, prefixesBurst = 1, 10
)

// Team has a team's permissions and limits.
type Team struct {
	// Name is the author in the log: 1 to 64 of a-z, 0-9, "_" and "-".
	Name string `yaml:"name"`
	// Tokens are the SHA-256 of the team's tokens, in hex.
	Tokens []string `yaml:"tokens"`
	// Prefixes are the writable paths: "/prefix/" for keys without a virtual host, "//NAME/prefix/" for keys of a virtual
	// host; for every host and device.
	Prefixes []string `yaml:"prefixes"`
	// Tags are the tags that the team may purge in the virtual hosts of Prefixes. "shop:*" means all tags that begin with
	// "shop:".
	Tags []string `yaml:"tags"`
	// Rate is the number of records a second that the team may write and read. A refused request counts as a record.
	Rate float64 `yaml:"rate"`
	// Bytes is the number of bytes a second that the team may publish and read: bodies of requests, and of objects.
	Bytes float64 `yaml:"bytes"`

	limiter *rate.Limiter
	volume  *rate.Limiter // of bytes; below 0 while the team has a debt
	purges  *rate.Limiter // of prefixes
	running chan struct{} // a slot for each request
	turns   turns         // of large bodies
}

// mayWrite reports whether the team may write the object at key. key need not be canonical; keys that are not canonical
// are refused later.
func (t *Team) mayWrite(key string) (allowed bool) {
	contract.VisitPurges(objectkey.Canonical(key), nil, func(id []byte) bool {
		allowed = slices.Contains(t.Prefixes, string(id))
		return !allowed
	})
	return allowed
}

// waitForRate waits until the rate allows n writes and no debt of bytes is left, and takes n off the rate. Unlike the
// limiter's WaitN, waitForRate reserves nothing: a reservation would leave the team's other writes no chance while
// batches are running.
func (t *Team) waitForRate(ctx context.Context, n int) error {
	for t.volume.Tokens() < 0 || !t.limiter.AllowN(time.Now(), n) {
		missing := max((float64(n)-t.limiter.Tokens())/t.Rate, -t.volume.Tokens()/t.Bytes)
		if n > t.limiter.Burst() {
			return fmt.Errorf("%d writes at once, at most %d are allowed", n, t.limiter.Burst())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(time.Duration(missing*float64(time.Second)), time.Millisecond)):
		}
	}
	return nil
}

// mayPurge reports whether the team may purge u.
func (t *Team) mayPurge(u publish.Purge) bool {
	if u.Tag == "" {
		return t.mayWrite(contract.PrefixPurge(u.VirtualHost, u.Prefix))
	}
	all := contract.PrefixPurge(u.VirtualHost, "/")
	if slices.Contains(t.Prefixes, all) { // the team may write all objects that can have the tag
		return true
	}
	here := func(prefix string) bool { space, _ := objectkey.Split(prefix); return space+"/" == all }
	return slices.ContainsFunc(t.Prefixes, here) && slices.ContainsFunc(t.Tags, func(tag string) bool {
		prefix, all := strings.CutSuffix(tag, "*")
		return tag == u.Tag || all && strings.HasPrefix(u.Tag, prefix)
	})
}

var (
	teamName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)
	tokenSum = regexp.MustCompile(`^[0-9a-f]{64}$`)
	tagForm  = regexp.MustCompile(`^[A-Za-z0-9._~:/?#[\]@!$&'()+;=%-]{1,64}\*?$`)
)

// teams are the teams of a file, by the SHA-256 of their tokens.
type teams map[[sha256.Size]byte]*Team

// parseTeams parses the file's text. A team in before with the same rates keeps its limiters and running requests.
func parseTeams(text []byte, before teams) (teams, error) {
	var file struct {
		Teams []*Team `yaml:"teams"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if file.Teams == nil { // perhaps an editor is writing the file
		return nil, errors.New("teams: missing; [] refuses everybody")
	}
	old := map[string]*Team{}
	for _, t := range before {
		old[t.Name] = t
	}
	all, names := teams{}, map[string]bool{}
	for i, t := range file.Teams {
		if t == nil {
			return nil, fmt.Errorf("team %d: empty", i+1)
		}
		if err := t.checkTeam(); err != nil {
			return nil, fmt.Errorf("team %d, %q: %w", i+1, t.Name, err)
		}
		if names[t.Name] {
			return nil, fmt.Errorf("team %d, %q: the name comes twice", i+1, t.Name)
		}
		names[t.Name] = true
		t.limiter, t.running = rate.NewLimiter(rate.Limit(t.Rate), int(math.Ceil(t.Rate))), make(chan struct{}, maxRequests)
		t.purges = rate.NewLimiter(prefixesRate, prefixesBurst)
		t.volume = rate.NewLimiter(rate.Limit(t.Bytes), int(max(t.Bytes, minBurstBytes)))
		t.turns = teamTurns()
		if same := old[t.Name]; same != nil {
			t.purges, t.turns = same.purges, same.turns
		}
		if same := old[t.Name]; same != nil && same.Rate == t.Rate {
			t.limiter, t.running = same.limiter, same.running
		}
		if same := old[t.Name]; same != nil && same.Bytes == t.Bytes {
			t.volume = same.volume
		}
		for _, token := range t.Tokens {
			sum := [sha256.Size]byte{}
			hex.Decode(sum[:], []byte(token)) // validated by checkTeam
			if all[sum] != nil {
				return nil, fmt.Errorf("team %d, %q: token %s… comes twice", i+1, t.Name, token[:8])
			}
			all[sum] = t
		}
	}
	return all, nil
}

func (t *Team) checkTeam() error {
	switch {
	case !teamName.MatchString(t.Name):
		return errors.New(`name: want 1 to 64 of a-z, 0-9, "_" and "-"`)
	case len(t.Tokens) == 0:
		return errors.New("tokens: none")
	case len(t.Prefixes) == 0:
		return errors.New("prefixes: none")
	}
	for _, token := range t.Tokens {
		if !tokenSum.MatchString(token) {
			return errors.New("tokens: want the SHA-256 of each token, 64 hex digits: printf %s TOKEN | sha256sum")
		}
	}
	for _, prefix := range t.Prefixes {
		space, path := objectkey.Split(prefix)
		u := publish.Purge{Prefix: path, VirtualHost: strings.TrimPrefix(space, "//")}
		if id, err := u.ID(); err != nil || id != prefix {
			return fmt.Errorf("prefixes: %q: want /prefix/ or //virtual-host/prefix/", prefix)
		}
	}
	for _, tag := range t.Tags {
		if !tagForm.MatchString(tag) {
			return fmt.Errorf("tags: %q: want a tag, or how tags begin and *", tag)
		}
	}
	if t.Rate == 0 {
		t.Rate = defaultRate
	}
	if !(t.Rate > 0 && t.Rate <= maxRate) {
		return fmt.Errorf("rate: %v is out of more than 0 to %d", t.Rate, maxRate)
	}
	if t.Bytes == 0 {
		t.Bytes = defaultBytes
	}
	if !(t.Bytes >= minBytes && t.Bytes <= maxBytes) {
		return fmt.Errorf("bytes: %v is out of %d to %d", t.Bytes, minBytes, maxBytes)
	}
	return nil
}

// Teams are the teams of a file. Teams is safe for concurrent use.
type Teams struct {
	file     string
	metrics  *Metrics
	log      *slog.Logger
	interval time.Duration // between looks at the file

	text    []byte
	current atomic.Pointer[teams]
}

// ReadTeams reads file.
func ReadTeams(file string, m *Metrics, log *slog.Logger) (*Teams, error) {
	t := &Teams{file: file, metrics: m, log: log, interval: 5 * time.Second}
	if err := t.readFile(); err != nil {
		return nil, err
	}
	return t, nil
}

// readFile reads the file and, if changed, the teams.
func (t *Teams) readFile() error {
	file, err := os.Open(t.file)
	if err != nil {
		return err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxTeamsFile+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxTeamsFile:
		return fmt.Errorf("%s: over %d bytes", t.file, maxTeamsFile)
	case t.current.Load() != nil && bytes.Equal(text, t.text):
		return nil
	}
	before := teams{}
	if now := t.current.Load(); now != nil {
		before = *now
	}
	t.text = text
	all, err := parseTeams(text, before)
	if err != nil {
		return fmt.Errorf("%s: %w", t.file, err)
	}
	t.current.Store(&all)
	t.metrics.Tokens.Set(float64(len(all)))
	return nil
}

// Run reads the file again after each change, until ctx ends. After an error, the previous teams stay.
func (t *Teams) Run(ctx context.Context) error {
	ticker := time.NewTicker(t.interval)
	defer ticker.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		before := t.current.Load()
		err := t.readFile()
		switch {
		case err != nil && err.Error() != failed:
			t.metrics.Reloads.WithLabelValues("error").Inc()
			t.log.Error("teams not read, those of before stay", "file", t.file, "error", err)
			failed = err.Error()
		case err == nil && t.current.Load() != before:
			t.metrics.Reloads.WithLabelValues("ok").Inc()
			t.log.Info("teams read", "file", t.file)
			failed = ""
		}
	}
}

// findTeam returns the team with token, or nil.
func (t *Teams) findTeam(token string) *Team {
	return (*t.current.Load())[sha256.Sum256([]byte(token))]
}
