package clients

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2/proto"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
	"github.com/gatehouse/gatehouse/testbed/link"
)

// fault drops one reply of a server, and then breaks the connection.
type fault struct {
	mu        sync.Mutex
	left      int // replies before the one that is swallowed; negative: none is
	swallowed chan struct{}
	resume    chan struct{}
}

// arm drops the reply after n further replies. The drop closes swallowed; the connection breaks once resume is closed.
func (f *fault) arm(n int) (swallowed, resume chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.swallowed, f.resume = n, make(chan struct{}), make(chan struct{})
	return f.swallowed, f.resume
}

func (f *fault) disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = -1
}

// takeReply reports whether a reply is the one to drop.
func (f *fault) takeReply() (resume chan struct{}, taken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left--; f.left != -1 {
		f.left = max(f.left, -2)
		return nil, false
	}
	close(f.swallowed)
	return f.resume, true
}

func (f *fault) filter(dst io.Writer, src io.Reader) error {
	replies := bufio.NewReader(src)
	for {
		reply, err := proto.Read(replies)
		if err != nil {
			return err
		}
		if resume, taken := f.takeReply(); taken {
			<-resume
			return errors.New("the reply is lost")
		}
		if _, err := io.WriteString(dst, reply); err != nil {
			return err
		}
	}
}

// dial connects to a server by a connection that has the fault.
func (f *fault) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &faulty{Conn: conn, fault: f, replies: bufio.NewReader(conn)}, nil
}

// faulty is a connection that may lose a reply.
type faulty struct {
	net.Conn
	fault   *fault
	replies *bufio.Reader
	reply   string // what is left of the last one
}

// Read reads at most one reply, and returns an error in place of the reply to lose.
func (c *faulty) Read(p []byte) (n int, err error) {
	if c.reply == "" {
		if c.reply, err = proto.Read(c.replies); err != nil {
			return 0, err
		}
		if resume, taken := c.fault.takeReply(); taken {
			<-resume
			c.Close()
			return 0, io.ErrUnexpectedEOF
		}
	}
	n = copy(p, c.reply)
	c.reply = c.reply[n:]
	return n, nil
}

// caller runs operations over a link.
type caller struct {
	name string
	// call returns the outcome of an operation for the caller: "ok VERSION", "error KIND", or "lost ERROR".
	call func(op []string) string
	only []string // operations; nil: all
}

// outcomeOf returns the outcome of a call in Go.
func outcomeOf(r publish.Receipt, err error) string {
	for kind, is := range map[string]error{"stale": publish.ErrStale, "not_found": publish.ErrNotFound,
		"invalid": publish.ErrInvalid, "exists": publish.ErrExists} {
		if errors.Is(err, is) {
			return "error " + kind
		}
	}
	if err != nil {
		return fmt.Sprintf("lost %v", err)
	}
	return fmt.Sprint("ok ", r.Version)
}

func inGo(ctx context.Context, p *publish.Publisher) func(op []string) string {
	return func(op []string) string {
		id := op[1]
		object := func(change func(*publish.Object)) (publish.Receipt, error) {
			o := publish.Object{Key: id, Body: []byte(op[2]), ContentType: "text/plain", Tags: []string{op[3]}}
			if len(op) > 4 {
				o.Version, _ = strconv.ParseUint(op[4], 10, 64)
			}
			change(&o)
			return p.Put(ctx, o)
		}
		switch op[0] {
		case "put", "put_version":
			return outcomeOf(object(func(*publish.Object) {}))
		case "put_if":
			return outcomeOf(object(func(o *publish.Object) { o.IfVersion, o.Version = o.Version, 0 }))
		case "put_absent":
			return outcomeOf(object(func(o *publish.Object) { o.IfAbsent = true }))
		case "delete":
			return outcomeOf(p.Delete(ctx, id, 0))
		case "purge":
			_, err := p.Purge(ctx, publish.Purge{Tag: id})
			return outcomeOf(publish.Receipt{}, err)
		case "put_device":
			return outcomeOf(p.PutDevice(ctx, publish.Device{ID: id, Hashes: op[2:3]}))
		case "add_device":
			r := p.AddDevices(ctx, []publish.Device{{ID: id, Hashes: op[2:3]}}, false)[0]
			return outcomeOf(r.Receipt, r.Err)
		case "set_device":
			return outcomeOf(p.ChangeDevice(ctx, id, 0, func(c *contract.Credential) error {
				c.Permissions = append(c.Permissions, op[2])
				return nil
			}))
		case "rotate_device":
			return outcomeOf(p.RotateDevice(ctx, publish.Rotation{ID: id, Secret: op[2], Cost: 4}))
		case "revoke_device":
			return outcomeOf(p.RevokeDevice(ctx, id))
		case "force_revoke_device":
			return outcomeOf(p.ForceRevokeDevice(ctx, id))
		case "delete_device", "force_delete_device":
			return outcomeOf(p.DeleteDevice(ctx, id, op[0] != "delete_device"))
		case "invalidate_device":
			return outcomeOf(p.InvalidateDevice(ctx, id))
		}
		panic(op[0])
	}
}

// inScript returns the operations that are one run of the script, by EVALSHA of a client that repeats a lost call, like
// a writer in another language.
func inScript(ctx context.Context, client redis.Scripter, by, namespace string) func(op []string) string {
	source, err := os.ReadFile("../../clients/go/publish/write.lua")
	if err != nil {
		panic(err)
	}
	script := redis.NewScript(string(source))
	return func(op []string) string {
		keyspace := contract.Keyspace{Namespace: namespace}
		mode, version, kind, fields := "replace", "0", "c:", []any{"deleted", "1"}
		switch op[0] {
		case "put", "put_version", "put_if":
			kind = "o:"
			fields = []any{"etag", publish.ETag("text/plain", []byte(op[2])), "content-type", "text/plain", "body", op[2],
				"tags", op[3]}
			if len(op) > 4 {
				version = map[string]string{"put_if": "="}[op[0]] + op[4]
			}
		case "delete":
			kind = "o:"
		case "purge":
			mode, kind, fields = "purge", "p:#", []any{"hard", "1"}
		case "put_device", "add_device":
			mode = map[string]string{"add_device": "add"}[op[0]] + map[string]string{"put_device": mode}[op[0]]
			fields = []any{"hash", op[2]}
		case "revoke_device":
			mode, fields = "merge", []any{"disabled", "revoked"}
		case "delete_device":
			mode = "merge"
		}
		shard, expiry := keyspace.Keys(0), 0
		if fields[0] == "deleted" {
			expiry = 86400000
		}
		member, err := contract.ParseMember(kind + op[1])
		if err != nil {
			panic(err)
		}
		keys := []string{shard.RecordKey(member), shard.SeqKey(), shard.LogKey(), shard.DataEpochKey(), shard.ChainKey()}
		args := []any{mode, version, fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()), member.String(), expiry,
			shard.EventsChannel(), by, ""}
		reply, err := script.Run(ctx, client, keys, append(args, fields...)...).Int64Slice()
		switch {
		case redis.HasErrorPrefix(err, "STALE"):
			return "error stale"
		case redis.HasErrorPrefix(err, "ABSENT"):
			return "error not_found"
		case redis.HasErrorPrefix(err, "EXISTS"):
			return "error exists"
		case err != nil:
			return fmt.Sprintf("lost %v", err)
		case op[0] == "purge":
			return "ok 0"
		}
		return fmt.Sprint("ok ", reply[0])
	}
}

// inHTTP returns the operations on objects by a publisher of HTTP. The client repeats a request without an answer, and
// one with a 503, with the same Idempotency-Key.
func inHTTP(ctx context.Context, base string) func(op []string) string {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	number := 0
	return func(op []string) string {
		number++
		method, target, body := "PUT", base+"/v1/objects"+op[1], ""
		h := map[string]string{"Authorization": "Bearer token", "Content-Type": "text/plain",
			"Idempotency-Key": fmt.Sprint("request ", number, " of ", base)}
		switch op[0] {
		case "put", "put_version", "put_absent":
			body, h["Gatehouse-Tags"] = op[2], op[3]
			if op[0] == "put_absent" {
				h["If-None-Match"] = "*"
			} else if op[0] == "put_version" {
				h["Gatehouse-Version"] = op[4]
			}
		case "put_if": // by a batch, since If-Match takes entity-tags
			method, target, h["Content-Type"] = "POST", base+"/v1/batch", "application/x-ndjson"
			body = fmt.Sprintf(`{"op": "put", "key": %q, "content_type": "text/plain", "body": %q, "tags": [%q], `+
				`"if_version": %s}`, op[1], op[2], op[3], op[4])
		case "delete":
			method = "DELETE"
		case "purge":
			method, target, body = "POST", base+"/v1/purge", fmt.Sprintf(`{"tag": %q}`, op[1])
		}
		for attempt := 1; ; attempt++ {
			r, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
			if err != nil {
				panic(err)
			}
			for name, value := range h {
				r.Header.Set(name, value)
			}
			answer, err := client.Do(r)
			var text []byte
			if err == nil {
				text, err = io.ReadAll(answer.Body)
				answer.Body.Close()
			}
			lost := err != nil || answer.StatusCode == 503 || strings.Contains(string(text), `"status":503`)
			if lost && attempt < 20 {
				continue
			}
			if lost {
				return fmt.Sprintf("lost %v %s", err, text)
			}
			status := answer.StatusCode
			_, rest, found := strings.Cut(string(text), `"version":`)
			version, _, _ := strings.Cut(strings.NewReplacer(",", "}", "\n", "").Replace(rest), "}")
			switch {
			case op[0] == "purge" && status == 200:
				return "ok 0"
			case status < 300 && found:
				return "ok " + version
			case op[0] == "put_absent" && status == 412:
				return "error exists"
			case status == 409 || strings.Contains(string(text), `"status":412`):
				return "error stale"
			}
			return fmt.Sprintf("HTTP %d %s", status, text)
		}
	}
}

// inProcess returns the operations by a driver of testdata.
func inProcess(t *testing.T, language string, command ...string) func(op []string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = filepath.Join(work, language)
	cmd.Env = append(os.Environ(),
		"PYTHONPATH="+absolutePath(t, filepath.Join(work, "python"))+":"+absolutePath(t, "../../.venv/clients"))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	return func(op []string) string {
		fmt.Fprintln(in, strings.Join(op, "\t"))
		if !lines.Scan() {
			return "the driver has ended"
		}
		return lines.Text()
	}
}

// copyDriver copies a driver to a project, and returns the driver's name there.
func copyDriver(t *testing.T, language, file string) string {
	t.Helper()
	source, err := os.ReadFile("testdata/" + file)
	if err == nil {
		err = os.WriteFile(filepath.Join(work, language, file), source, 0o600)
	}
	require.NoError(t, err)
	return file
}

// startPublisher runs gatehouse-publisher and returns its URL.
func startPublisher(t *testing.T, redisURL, namespace string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gatehouse-publisher")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./publisher/cmd/gatehouse-publisher")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	teams := filepath.Join(t.TempDir(), "teams.yaml")
	// The token's SHA-256.
	text := "teams: [{name: all, tokens: [3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0], " +
		"prefixes: [/v1/], tags: ['t:*'], rate: 100000}]\n"
	require.NoError(t, os.WriteFile(teams, []byte(text), 0o600))
	address, err := freeport.FindAddress()
	require.NoError(t, err)
	admin, err := freeport.FindAddress()
	require.NoError(t, err)
	cmd := exec.Command(binary, "--redis.url", redisURL, "--redis.namespace", namespace, "--teams.file", teams,
		"--listen.address", address, "--admin.address", admin, "--log.level", "error")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	await.Until(t, "the publisher to answer", func() bool {
		answer, err := http.Get("http://" + address + "/openapi.json") //nolint:noctx // of this machine
		if err == nil {
			answer.Body.Close()
		}
		return err == nil
	})
	return "http://" + address
}

// model is the contract of the operations: the contents of Redis for one key, one device and one tag.
type model struct {
	object, device, purge record
	writes                int
}

// record is a record of the model. A version of now is a time in milliseconds.
type record struct {
	version     int // 0: there is none
	deleted     bool
	body        string // of an object
	hash        string
	permissions string
	disabled    bool
	written     int // when, in writes
}

const now = 1 << 50

func (r *record) isLive() bool { return r.version > 0 && !r.deleted }

// apply applies an operation and returns the caller's outcome.
func (m *model) apply(op []string) string {
	store := func(r *record, version int, next record) string {
		m.writes++
		next.version, next.written = version, m.writes
		*r = next
		if r == &m.purge {
			return "ok 0"
		}
		return fmt.Sprint("ok ", version)
	}
	o, d := &m.object, &m.device
	given := 0
	if len(op) > 4 {
		given, _ = strconv.Atoi(op[4])
	}
	switch op[0] {
	case "put":
		return store(o, o.version+1, record{body: op[2]})
	case "put_version":
		if given <= o.version {
			return "error stale"
		}
		return store(o, given, record{body: op[2]})
	case "put_if":
		if given != o.version {
			return "error stale"
		}
		return store(o, o.version+1, record{body: op[2]})
	case "put_absent":
		if o.isLive() && m.purge.written < o.written {
			return "error exists"
		}
		return store(o, o.version+1, record{body: op[2]})
	case "delete":
		return store(o, o.version+1, record{deleted: true})
	case "purge":
		return store(&m.purge, m.purge.version+1, record{})
	case "put_device":
		return store(d, d.version+1, record{hash: op[2]})
	case "add_device":
		switch {
		case d.version == 0:
			return store(d, 1, record{hash: op[2]})
		case d.isLive() && *d == record{version: d.version, written: d.written, hash: op[2]}:
			return fmt.Sprint("ok ", d.version)
		}
		return "error exists"
	case "set_device", "rotate_device":
		if !d.isLive() {
			return "error not_found"
		}
		next := *d
		if op[0] == "set_device" {
			names := strings.Split(next.permissions+","+op[2], ",")
			slices.Sort(names)
			next.permissions = strings.TrimPrefix(strings.Join(slices.Compact(names), ","), ",")
		} else if secretOf(next.hash) == op[2] {
			return "error invalid"
		} else {
			next.hash = "new " + op[2]
		}
		return store(d, d.version+1, next)
	case "revoke_device", "force_revoke_device", "delete_device", "force_delete_device":
		verb, forced := strings.CutPrefix(op[0], "force_")
		switch {
		case d.isLive() && verb == "revoke_device":
			next := *d
			next.disabled = true
			return store(d, d.version+1, next)
		case d.isLive():
			return store(d, min(d.version+1, now), record{deleted: true})
		case forced:
			return store(d, now, record{deleted: true})
		}
		return "error not_found"
	case "invalidate_device":
		if d.isLive() {
			return "error invalid"
		}
		return store(d, min(d.version+1, now), record{deleted: true})
	}
	panic(op[0])
}

// scenario has the names of one case.
type scenario struct{ key, device, tag string }

func newScenario(n int) scenario {
	return scenario{fmt.Sprint("/v1/", n), fmt.Sprint("d", n), fmt.Sprint("t:", n)}
}

// hashes of two secrets, one for each writer.
var hashed = func() (hashes [2]string) {
	for i := range hashes {
		hashes[i], _ = publish.HashSecret(fmt.Sprint("secret of ", i), 4, nil)
	}
	return hashes
}()

// operationsOf returns the operations of writer number w. An operation's version is the version that the setups leave,
// or one more.
func (s scenario) operationsOf(w int) [][]string {
	text := fmt.Sprint("of ", w)
	return [][]string{
		{"put", s.key, text, s.tag}, {"put_version", s.key, text, s.tag, "7"}, {"put_if", s.key, text, s.tag, "1"},
		{"put_absent", s.key, text, s.tag}, {"delete", s.key}, {"purge", s.tag},
		{"put_device", s.device, hashed[w]}, {"add_device", s.device, hashed[w]},
		{"set_device", s.device, fmt.Sprint("may.", w)}, {"rotate_device", s.device, fmt.Sprint("secret of ", w)},
		{"revoke_device", s.device}, {"force_revoke_device", s.device}, {"delete_device", s.device},
		{"force_delete_device", s.device}, {"invalidate_device", s.device},
	}
}

// listSetups returns the earlier writes: none, or records, or tombstones.
func (s scenario) listSetups() [][][]string {
	put := [][]string{{"put", s.key, "before", s.tag}, {"put_device", s.device, hashed[0]}}
	gone := append(slices.Clone(put), []string{"delete", s.key}, []string{"delete_device", s.device})
	return [][][]string{nil, put, gone}
}

func (s scenario) readModel(t *testing.T, client redis.UniversalClient, namespace string) model {
	t.Helper()
	ctx, shard := t.Context(), contract.Keyspace{Namespace: namespace}.Keys(0)
	read := func(m contract.Member) (r record) {
		fields, err := client.HGetAll(ctx, shard.RecordKey(m)).Result()
		require.NoError(t, err)
		r.version, _ = strconv.Atoi(fields["version"])
		if r.version > 1e12 {
			r.version = now
		}
		r.deleted, r.disabled, r.body, r.permissions = fields["deleted"] != "", fields["disabled"] != "", fields["body"],
			fields["permissions"]
		r.hash = fields["hash"]
		for i := range hashed {
			if secret := fmt.Sprint("secret of ", i); r.hash != "" && publish.Matches(r.hash, secret, nil) {
				r.hash = secret
				break
			}
		}
		return r
	}
	tag := contract.PurgeMember("#" + s.tag)
	writes, _ := client.Get(ctx, shard.SeqKey()).Int()
	return model{read(contract.ObjectMember(s.key)), read(contract.CredentialMember(s.device)), read(tag), writes}
}

// secretOf returns the secret of a hash, or of the model's name for a new one.
func secretOf(hash string) string {
	if i := slices.Index(hashed[:], hash); i >= 0 {
		return fmt.Sprint("secret of ", i)
	}
	return strings.TrimPrefix(hash, "new ")
}

// withoutMissing returns a model without the fields that Redis lacks.
func (m model) withoutMissing() model {
	for _, r := range []*record{&m.object, &m.device, &m.purge} {
		r.written = 0
		if r.version > 1e12 {
			r.version = now
		}
		r.hash = secretOf(r.hash)
	}
	return m
}

// withoutTime returns an outcome, without a version that is a time.
func withoutTime(outcome string) string {
	if version, found := strings.CutPrefix(outcome, "ok "); found && len(version) > 12 {
		return "ok now"
	}
	return outcome
}

// findOrder returns an order of the calls, each applied once in its interval, that explains results and state, or "". A
// lost call may be applied once or not at all.
func findOrder(before, after model, first, other []string, firstOutcome, otherOutcome string) string {
	lost := strings.HasPrefix(firstOutcome, "lost")
	for name, order := range map[string][2][]string{"first, other": {first, other}, "other, first": {other, first},
		"other": {other, nil}} {
		if order[1] == nil && !lost {
			continue
		}
		m, outcomes := before, map[*string]string{}
		for _, op := range order {
			if op == nil {
				continue
			}
			outcomes[&op[0]] = withoutTime(m.apply(op))
		}
		if m.withoutMissing() == after.withoutMissing() && outcomes[&other[0]] == otherOutcome &&
			(lost || outcomes[&first[0]] == firstOutcome) {
			return name
		}
	}
	return ""
}

// retries runs cases of one client, and returns their number.
type retries struct {
	deployment string
	client     redis.UniversalClient // direct
	by         string
	faults     *fault
}

// runCases runs cases: each reply of the client's calls is lost once.
func (r retries) runCases(t *testing.T, c caller, namespace string, random *rand.Rand, most int) {
	t.Helper()
	direct := inGo(t.Context(), publish.New(r.client, publish.Namespace(namespace)))
	type pair struct{ setup, first, other int }
	var pairs []pair
	for setup := range newScenario(0).listSetups() {
		for i, first := range newScenario(0).operationsOf(0) {
			if c.only != nil && !slices.Contains(c.only, first[0]) {
				continue
			}
			for k := range newScenario(0).operationsOf(1) {
				if (i < 6) == (k < 6) { // of the same kind
					pairs = append(pairs, pair{setup, i, k})
				}
			}
		}
	}
	random.Shuffle(len(pairs), func(i, k int) { pairs[i], pairs[k] = pairs[k], pairs[i] })
	cases, repeated, number, failed := 0, 0, 0, 0
	if got := c.call([]string{"put", "/v1/warm", "x", "t:warm"}); got != "ok 1" { // agrees on the number of shards
		t.Fatalf("%s: %s", c.name, got)
	}
	for _, p := range pairs[:min(most, len(pairs))] {
		for point := 0; point < 20; point++ {
			number++
			s := newScenario(number)
			first, other := s.operationsOf(0)[p.first], s.operationsOf(1)[p.other]
			m := model{}
			for _, op := range s.listSetups()[p.setup] {
				m.apply(op)
				if got := direct(op); !strings.HasPrefix(got, "ok") {
					t.Fatalf("%v: %s", op, got)
				}
			}
			m.writes = s.readModel(t, r.client, namespace).writes
			swallowed, resume := r.faults.arm(point)
			done := make(chan string, 1)
			go func() { done <- c.call(first) }()
			var firstOutcome, otherOutcome string
			hit := true
			select {
			case <-swallowed:
				otherOutcome = direct(other)
				close(resume)
				firstOutcome = <-done
			case firstOutcome = <-done:
				hit = false
				r.faults.disarm()
				otherOutcome = direct(other)
			}
			after := s.readModel(t, r.client, namespace)
			cases++
			if order := findOrder(m, after, first, other, withoutTime(firstOutcome), withoutTime(otherOutcome)); order == "" {
				if failed++; failed <= 10 {
					t.Errorf("%s: after %v, the reply number %d of %v was lost: told %s; meanwhile %v: told %s; "+
						"no order explains %+v",
						c.name, s.listSetups()[p.setup], point, first, firstOutcome, other, otherOutcome, after)
				}
			}
			if !hit {
				break
			}
			if !strings.HasPrefix(firstOutcome, "lost") {
				repeated++
			}
		}
	}
	t.Logf("%s, %s: %d cases, %d with a lost reply that the client survived, %d not explained", r.deployment, c.name,
		cases, repeated, failed)
}

// objectsOnly are the operations of the publisher of HTTP.
var objectsOnly = []string{"put", "put_version", "put_if", "put_absent", "delete", "purge"}

// scriptOnly are the operations that are one run of the script.
var scriptOnly = []string{"put", "put_version", "put_if", "delete", "purge", "put_device", "add_device",
	"revoke_device", "delete_device"}

// maxPairs returns how many pairs of operations a client gets at most.
func maxPairs() int {
	if os.Getenv("LONG") != "" {
		return 1 << 20
	}
	return 40
}

// TestLostReplies: each reply to each client is lost once, a second writer writes meanwhile, and then the connection
// breaks, so that the client's library repeats the call. Each call takes effect once, or, if the caller got an error,
// at most once. SEED repeats a run; the long form has every pair of operations.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	seed, most := seed.Of(t), maxPairs()
	address := strings.TrimPrefix(redistest.Start(t), "redis://")
	client := redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { client.Close() })
	for name, start := range map[string]func(t *testing.T, address, namespace string) (func([]string) string, []string){
		"go": func(t *testing.T, address, namespace string) (func(op []string) string, []string) {
			return inGo(t.Context(), publish.New(connectRepeating(t, address), publish.Namespace(namespace))), nil
		},
		"script": func(t *testing.T, address, namespace string) (func(op []string) string, []string) {
			return inScript(t.Context(), connectRepeating(t, address), "PUBLISH", namespace), scriptOnly
		},
		"http": func(t *testing.T, address, namespace string) (func(op []string) string, []string) {
			return inHTTP(t.Context(), startPublisher(t, "redis://"+address, namespace)), objectsOnly
		},
		"python": func(t *testing.T, address, namespace string) (func(op []string) string, []string) {
			return inProcess(t, "python", absolutePath(t, "../../.venv/bin/python"), "-B", copyDriver(t, "python", "driver.py"),
				"blocking", "single", address, namespace), nil
		},
		"asyncio": func(t *testing.T, address, namespace string) (func(op []string) string, []string) {
			return inProcess(t, "python", absolutePath(t, "../../.venv/bin/python"), "-B", copyDriver(t, "python", "driver.py"),
				"asyncio", "single", address, namespace), nil
		},
		"node": func(t *testing.T, address, namespace string) (func(op []string) string, []string) {
			return inProcess(t, "node", "node", copyDriver(t, "node", "driver.mjs"), "single", address, namespace), nil
		},
		"java": func(t *testing.T, address, namespace string) (func(op []string) string, []string) {
			return inProcess(t, "java", "java", "-cp", "gatehouse-client-0.1.0.jar:lib/*", copyDriver(t, "java", "Driver.java"),
				"single", address, namespace), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults := &fault{left: -1}
			l, err := link.New("127.0.0.1:0", address)
			require.NoError(t, err)
			l.SetFilter(faults.filter)
			t.Cleanup(l.Close)
			call, only := start(t, l.Address(), name)
			r := retries{"single", client, "PUBLISH", faults}
			r.runCases(t, caller{name, call, only}, name, rand.New(rand.NewPCG(seed, 54)), most)
		})
	}
}

// connectRepeating returns a client that repeats a call without a reply, as go-redis does by default.
func connectRepeating(t *testing.T, address string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: address, MinRetryBackoff: -1, MaxRetryBackoff: -1})
	t.Cleanup(func() { client.Close() })
	return client
}

// TestLostRepliesOnCluster is [TestLostReplies] on a Cluster: the client of a Cluster repeats in another way.
func TestLostRepliesOnCluster(t *testing.T) {
	t.Parallel()
	seed, most := seed.Of(t), maxPairs()
	cluster := redistest.StartCluster(t)
	var addresses []string
	for _, master := range cluster.Masters {
		addresses = append(addresses, master.Address)
	}
	addresses = slices.Clip(addresses) // a client appends to it
	direct := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
	t.Cleanup(func() { direct.Close() })
	for _, name := range []string{"go", "script"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults := &fault{left: -1}
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses, Dialer: faults.dial,
				MinRetryBackoff: -1, MaxRetryBackoff: -1})
			t.Cleanup(func() { client.Close() })
			c := caller{name, inGo(t.Context(), publish.New(client, publish.Namespace(name))), nil}
			if name == "script" {
				c.call, c.only = inScript(t.Context(), client, "SPUBLISH", name), scriptOnly
			}
			r := retries{"cluster", direct, "SPUBLISH", faults}
			r.runCases(t, c, name, rand.New(rand.NewPCG(seed, 54)), most)
		})
	}
}
