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
	// defaultBytes is how many bytes a second a team may publish and read unless the file says otherwise; leastBytes how
	// many at once, at least: more than a batch takes at once.
	defaultBytes       = 10 << 20
	leastBytes         = 4 << 20
	minBytes, maxBytes = 64 << 10, 1 << 30
	// prefixesRate and prefixesBurst are how many purges of prefixes a team may make a second, and at once. Each makes
	// each sidecar look at all its objects, while revocations wait.
	prefixesRate, prefixesBurst = 1, 10
)

// Team is who may write what.
type Team struct {
	// Name is the author in the log: 1 to 64 of a-z, 0-9, "_" and "-".
	Name string `yaml:"name"`
	// Tokens are the SHA-256 of its tokens, in hex.
	Tokens []string `yaml:"tokens"`
	// Prefixes are of the paths that it may write: "/prefix/" for keys without a virtual host, "//NAME/prefix/" for those
	// of one; of every host and device.
	Prefixes []string `yaml:"prefixes"`
	// Tags are those that it may purge in the virtual hosts of its prefixes; "shop:*" is all that begin with "shop:".
	Tags []string `yaml:"tags"`
	// Rate is how many records a second it may write and read; each refused request counts as one.
	Rate float64 `yaml:"rate"`
	// Bytes is how many bytes a second it may publish and read: bodies of requests, and of objects that are read.
	Bytes float64 `yaml:"bytes"`

	limiter *rate.Limiter
	volume  *rate.Limiter // of bytes; below 0 while the team has a debt
	purges  *rate.Limiter // of prefixes
	running chan struct{} // a place for each of its requests
	turns   turns         // of its large bodies
}

// mayWrite reports whether the team may write the object at key, in canonical form or not: a key that is not canonical
// is refused later.
func (t *Team) mayWrite(key string) (allowed bool) {
	contract.VisitPurges(objectkey.Canonical(key), nil, func(id []byte) bool {
		allowed = slices.Contains(t.Prefixes, string(id))
		return !allowed
	})
	return allowed
}

// wait takes n writes off the rate as soon as there are so many, and no debt of bytes. Unlike WaitN of the limiter it
// reserves nothing, which would leave no other write of the team a chance while batches are running.
func (t *Team) wait(ctx context.Context, n int) error {
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

// mayPurge reports whether the team may purge this.
func (t *Team) mayPurge(u publish.Purge) bool {
	if u.Tag == "" {
		return t.mayWrite(contract.PrefixPurge(u.VirtualHost, u.Prefix))
	}
	all := contract.PrefixPurge(u.VirtualHost, "/")
	if slices.Contains(t.Prefixes, all) { // it may write all that can have the tag
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

// teams are those of one file, by the SHA-256 of their tokens.
type teams map[[sha256.Size]byte]*Team

// parseTeams reads the file's text. A team of before with the same rates keeps its limiters and running requests.
func parseTeams(text []byte, before teams) (teams, error) {
	var file struct {
		Teams []*Team `yaml:"teams"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if file.Teams == nil { // an editor may be writing it
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
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("team %d, %q: %w", i+1, t.Name, err)
		}
		if names[t.Name] {
			return nil, fmt.Errorf("team %d, %q: the name comes twice", i+1, t.Name)
		}
		names[t.Name] = true
		t.limiter, t.running = rate.NewLimiter(rate.Limit(t.Rate), int(math.Ceil(t.Rate))), make(chan struct{}, maxRequests)
		t.purges = rate.NewLimiter(prefixesRate, prefixesBurst)
		t.volume = rate.NewLimiter(rate.Limit(t.Bytes), int(max(t.Bytes, leastBytes)))
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
			hex.Decode(sum[:], []byte(token)) // check has seen it
			if all[sum] != nil {
				return nil, fmt.Errorf("team %d, %q: token %s… comes twice", i+1, t.Name, token[:8])
			}
			all[sum] = t
		}
	}
	return all, nil
}

func (t *Team) check() error {
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

// Teams are the teams of a file. It is safe for concurrent use.
type Teams struct {
	file    string
	metrics *Metrics
	log     *slog.Logger
	every   time.Duration // between looks at the file

	text []byte
	now  atomic.Pointer[teams]
}

// ReadTeams reads file.
func ReadTeams(file string, m *Metrics, log *slog.Logger) (*Teams, error) {
	t := &Teams{file: file, metrics: m, log: log, every: 5 * time.Second}
	if err := t.read(); err != nil {
		return nil, err
	}
	return t, nil
}

// read reads the file and, if it has changed, its teams.
func (t *Teams) read() error {
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
	case t.now.Load() != nil && bytes.Equal(text, t.text):
		return nil
	}
	before := teams{}
	if now := t.now.Load(); now != nil {
		before = *now
	}
	t.text = text
	all, err := parseTeams(text, before)
	if err != nil {
		return fmt.Errorf("%s: %w", t.file, err)
	}
	t.now.Store(&all)
	t.metrics.Tokens.Set(float64(len(all)))
	return nil
}

// Run reads the file again when it has changed, until ctx ends. After an error the teams of before stay.
func (t *Teams) Run(ctx context.Context) error {
	ticker := time.NewTicker(t.every)
	defer ticker.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		before := t.now.Load()
		err := t.read()
		switch {
		case err != nil && err.Error() != failed:
			t.metrics.Reloads.WithLabelValues("error").Inc()
			t.log.Error("teams not read, those of before stay", "file", t.file, "error", err)
			failed = err.Error()
		case err == nil && t.now.Load() != before:
			t.metrics.Reloads.WithLabelValues("ok").Inc()
			t.log.Info("teams read", "file", t.file)
			failed = ""
		}
	}
}

// of returns the team with this token, nil if there is none.
func (t *Teams) of(token string) *Team { return (*t.now.Load())[sha256.Sum256([]byte(token))] }
