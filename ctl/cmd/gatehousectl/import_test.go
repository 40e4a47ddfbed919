package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestMain lets a test run the program as a separate process, to kill the process.
func TestMain(m *testing.M) {
	if os.Getenv("GATEHOUSECTL_OF_TEST") != "" {
		main()
	}
	os.Exit(m.Run())
}

var readyHash = "$2b$12$" + strings.Repeat("a", 53)

// TestImport imports a CSV, again, and over other records.
func TestImport(t *testing.T) {
	s := newShell(t)
	file := s.file("d.csv", "\ufeffid,secret,hash,permissions,labels,not_after\r\n"+
		"d,,"+readyHash+",\"b,a\",\"fleet=eu,site=7\",2030-01-31T00:00:00Z\r\n\r\n"+
		"e,s3cret,,,,\r\n")
	dry := s.ok("", "device", "import", file, "--dry-run")
	if dry != "2 devices: 2 valid, 0 failed; nothing was written\n" || len(s.redis.Keys()) > 0 {
		t.Errorf("dry run: %q", dry)
	}
	for i, want := range []string{"2 written, 0 unchanged", "0 written, 2 unchanged"} {
		if got := s.ok("", "device", "import", file, "--cost", "4"); got != "2 devices: "+want+", 0 failed\n" {
			t.Errorf("import %d: %q", i, got)
		}
	}
	if c := s.record(); c.Version != 1 || c.Hashes[0] != readyHash ||
		contract.FormatLabels(c.Labels) != "fleet=eu,site=7" || !reflect.DeepEqual(c.Permissions, []string{"a", "b"}) ||
		c.NotAfterMS != 1896048000000 {
		t.Errorf("got %+v", c)
	}
	if err := bcrypt.CompareHashAndPassword([]byte(hash(s, "e")["hash"]), []byte("s3cret")); err != nil {
		t.Errorf("the secret: %v", err)
	}
	s.ok("", "device", "revoke", "d")
	s.ok("other", "device", "rotate", "e", "--secret-file", "-", "--cost", "4", "--overlap", "0")
	r := s.run("", "device", "import", file, "--cost", "4", "--rate", "1000")
	if r.code != 1 || !strings.Contains(r.stderr, file+":2: device \"d\": already exists") ||
		!strings.Contains(r.stderr, file+":4: device \"e\": already exists with another secret\n") ||
		!strings.Contains(r.stderr, "2 of 2 devices failed") || !s.record().Disabled {
		t.Errorf("over others: %+v", r)
	}
	got := s.ok("", "device", "import", file, "--cost", "4", "--replace")
	if got != "2 devices: 2 written, 0 unchanged, 0 failed\n" || s.record().Disabled {
		t.Errorf("replace: %q", got)
	}
}

// TestImportOfAnExport: what export prints can be imported unchanged.
func TestImportOfAnExport(t *testing.T) {
	from, to := newShell(t), newShell(t)
	for id, flags := range map[string][]string{
		"labels": {"--label", "fleet=eu,empty=", "--permissions", "read,write"}, "plain": nil,
		"ends": {"--not-after", "2030-01-31T00:00:00.123Z"}, "ended": {"--not-after", "2001-01-31T00:00:00Z"}, "revoked": nil,
		"rotated": nil,
	} {
		from.ok("secret", append([]string{"device", "put", id, "--secret-file", "-", "--cost", "4"}, flags...)...)
	}
	from.ok("new", "device", "rotate", "rotated", "--secret-file", "-", "--cost", "4")
	from.ok("", "device", "revoke", "revoked")
	from.redis.HDel(keys.CredentialKey("revoked"), contract.FieldHash) // the contract allows that
	from.redis.HSet(keys.CredentialKey("corrupt"), "version", "1")
	from.redis.ZAdd(keys.LogKey(), 99, contract.CredentialMember("corrupt").String())
	exported := from.run("", "device", "export").stdout
	r := to.run(exported, "device", "import", "-")
	if r.code != 1 || r.stdout != "7 devices: 6 written, 0 unchanged, 1 failed\n" ||
		!strings.HasPrefix(r.stderr, `-:7: state "corrupt"`) {
		t.Fatalf("got %+v", r)
	}
	for _, id := range []string{"labels", "plain", "ends", "ended", "revoked", "rotated"} {
		want, got := hash(from, id), hash(to, id)
		for _, fields := range []map[string]string{want, got} {
			delete(fields, contract.FieldVersion)
			delete(fields, contract.FieldPublished)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", id, got, want)
		}
	}
}

// TestImportRefuses lines, files and flags.
func TestImportRefuses(t *testing.T) {
	s := newShell(t)
	for _, test := range []struct{ line, want string }{
		{`d,"s"s,,,,`, "extraneous or missing"}, {"d,s", "2 fields, want 6"}, {"d,s,,a b,,", `permission "a b"`},
		{"d,s,,,a=1;b=2,", "labels: value"}, {"d,s,,,,tomorrow", "not_after: want a time"},
		{"d,,nohash,,,", "no hash of a known scheme"},
		{"d,s," + readyHash + ",,,", "give a secret"}, {"d,,,,,", "--generate makes one"},
		{"d\x00,s,,,,", `invalid device id "d\x00"`},
		{"d,s\x00,,,,", "has a NUL"}, {"d,\xff,,,,", "is not UTF-8"}, {"\x1b[2J,s,,,,", `\x1b[2J`},
		{`"=cmd(""x"")",s,,,,`, "device id"}, {"d," + strings.Repeat("s", maxDeviceLine) + ",,,,", "over 65536 bytes"},
		{"d," + strings.Repeat("s", 73) + ",,,,", "73 bytes"}, {"good,,x,,,", "no hash of a known scheme"},
		{"twice,s,,,,", "came before"}, {"d,s,," + strings.Repeat("\x01", 1<<15) + ",,", "permission \"\\x01"},
	} {
		in := "id,secret,hash,permissions,labels,not_after\ntwice,s,,,,\n" + test.line + "\nlast,s,,,,\n"
		r := s.run(in, "device", "import", "-", "--dry-run")
		if r.code != 1 || r.stdout != "3 devices: 2 valid, 1 failed; nothing was written\n" ||
			!strings.HasPrefix(r.stderr, "-:3: ") || !strings.Contains(r.stderr, test.want) ||
			strings.ContainsAny(r.stderr, "\x00\x1b") || len(r.stderr) > 500 {
			t.Errorf("%.60q: got %+v, want %q", test.line, r, test.want)
		}
	}
	for _, test := range []struct{ line, want string }{
		{`{"id":"d","hashes":["` + readyHash + `"],"hash":"` + readyHash + `","permission":[]}`, `unknown field "permission"`},
		{`{"id":"d","secret":7}`, "cannot unmarshal number"}, {`{"id":"d","secret":"s"} {}`, "more than one JSON value"},
		{`{"id":"d","secret":"s\ud800"}`, "not Unicode text"},
		{`{"id":"d","secret":"s"`, "unexpected EOF"}, {`{"id":"d","secret":"s","state":"odd"}`, `state "odd"`},
		{`{"` + strings.Repeat("x", 1<<15) + `":1}`, "unknown field"},
		{`{"id":` + strings.Repeat("7", 1<<15) + `}`, "cannot unmarshal"},
	} {
		r := s.run(`{"id":"a","secret":"s"}`+"\n"+test.line, "device", "import", "-", "--dry-run")
		if r.code != 1 || !strings.HasPrefix(r.stderr, "-:2: ") || !strings.Contains(r.stderr, test.want) ||
			len(r.stderr) > 500 {
			t.Errorf("%.60s: got %.500q, want %q", test.line, r.stderr, test.want)
		}
	}
	odd := s.run("", "device", "import", s.file("\x1b[31m.csv", "id,hash\nd,x\n"), "--dry-run")
	if odd.code != 1 || strings.Contains(odd.stderr, "\x1b") || !strings.Contains(odd.stderr, `\x1b[31m.csv":2: `) {
		t.Errorf("a file's name for the terminal: %+v", odd)
	}
	many := s.run("id\n"+strings.Repeat("d,\n", 1000), "device", "import", "-", "--dry-run")
	if many.code != 1 || strings.Count(many.stderr, "\n") != maxPrinted+2 ||
		!strings.Contains(many.stderr, "1000 of 1000") {
		t.Errorf("many errors: %+v", many)
	}
	s.fails(2, "is empty", "", "device", "import", "-")
	s.fails(2, `column "secrets" is unknown`, "id,secrets\n", "device", "import", "-")
	s.fails(2, "no column id", "secret\n", "device", "import", "-")
	s.fails(2, "comes twice", "id,id\n", "device", "import", "-")
	s.fails(2, "need each other", "id\n", "device", "import", "-", "--generate")
	s.fails(2, "need each other", "id\n", "device", "import", "-", "--secrets", "x")
	s.fails(2, "--secrets", "id\n", "device", "import", "-", "--generate", "--secrets", s.file("there", ""))
	s.fails(1, "no such file", "", "device", "import", filepath.Join(t.TempDir(), "none"))
	open := s.file("open", "")
	require.NoError(t, os.Chmod(open, 0o640))
	s.fails(2, "only its owner", "id\n", "device", "import", "-", "--generate", "--secrets", open, "--resume")
	s.redis.Close()
	s.fails(1, "stopped after 0 devices; import it again", "id,hash\nd,"+readyHash+"\n", "device", "import", "-")
}

// TestGeneratedSecrets: registered devices get no secrets, and no two imports share a file.
func TestGeneratedSecrets(t *testing.T) {
	s := newShell(t)
	s.ok("secret", "device", "put", "old", "--secret-file", "-", "--cost", "4")
	file := filepath.Join(t.TempDir(), "secrets")
	args := []string{"device", "import", "-", "--generate", "--secrets", file, "--cost", "4"}
	r := s.run("id\nold\n<new>\n", args...)
	if r.code != 1 || r.stdout != "2 devices: 1 written, 0 unchanged, 1 failed\n" ||
		!strings.HasPrefix(r.stderr, "-:2: ") {
		t.Fatalf("got %+v", r)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	var k keptSecret
	content, _ := os.ReadFile(file)
	if err := json.Unmarshal(content, &k); err != nil || k.ID != "<new>" || !strings.HasPrefix(k.Secret, "gh_") ||
		bcrypt.CompareHashAndPassword([]byte(hash(s, "<new>")["hash"]), []byte(k.Secret)) != nil {
		t.Errorf("%s: %v", content, err)
	}
	held, err := openSecrets(file, true)
	require.NoError(t, err)
	s.fails(1, "another import", "id\nd\n", append(args, "--resume")...)
	held.close()
	if got := s.ok("id\n<new>\nd\n", append(args, "--resume")...); got != "2 devices: 1 written, 1 unchanged, 0 failed\n" {
		t.Errorf("resumed: %q", got)
	}
	require.NoError(t, os.WriteFile(file, append(content, "{}\n{\"id"...), 0o600))
	s.fails(2, "line 2: is no line of an import", "id\nd\n", append(args, "--resume")...)
}

// TestSecretsFile: only a line that an interrupted import may have written is cut off.
func TestSecretsFile(t *testing.T) {
	line := `{"id":"d","secret":"s","hash":"` + readyHash + `"}` + "\n"
	for content, want := range map[string]string{ // "" is a refusal
		"0123456789abcdef": "", `{"id":"d","secret":"s"}`: "", `{"name":`: "", line + "pepper": "", "pepper\n": "",
		line + `{"id":"e"`: line, line + "{": line, line + `{"id`: line, line: line,
		line[:len(line)-1]: line, line + `{"secret":"s","id":"d","hash":"` + readyHash + `"}`: line +
			`{"secret":"s","id":"d","hash":"` + readyHash + `"}` + "\n",
	} {
		name := filepath.Join(t.TempDir(), "secrets")
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		s, err := openSecrets(name, true)
		if err == nil {
			s.close()
		}
		if (err != nil) != (want == "") || err != nil && !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", content, err)
		}
		if want == "" {
			want = content
		}
		if after, _ := os.ReadFile(name); string(after) != want {
			t.Errorf("%q: became %q", content, after)
		}
	}
	target := filepath.Join(t.TempDir(), "target")
	link := target + ".link"
	require.NoError(t, errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, link)))
	if _, err := openSecrets(link, true); err == nil {
		t.Error("a symbolic link was followed")
	}
	if os.Getuid() != 0 {
		return
	}
	require.NoError(t, os.Chown(target, 65534, 65534))
	if _, err := openSecrets(target, true); !errors.Is(err, errUsage) {
		t.Errorf("a file of another owner: %v", err)
	}
}

// TestKilledImport kills imports at random moments and continues them: nothing is written twice, nothing is missing.
func TestKilledImport(t *testing.T) {
	t.Parallel()
	devices, runs := 1280, 2
	if testing.Short() {
		devices, runs = 640, 1
	}
	var in strings.Builder
	in.WriteString("id,secret,hash,labels\n")
	for i := range devices {
		switch i % 32 {
		case 0:
			fmt.Fprintf(&in, "d%d,plain-%d,,n=%d\n", i, i, i)
		case 1:
			fmt.Fprintf(&in, "d%d,,,n=%d\n", i, i)
		default:
			fmt.Fprintf(&in, "d%d,,%s,n=%d\n", i, readyHash, i)
		}
	}
	s := newShell(t)
	file := s.file("d.csv", in.String())
	client := redis.NewClient(&redis.Options{Addr: redistest.StartServer(t).Address})
	t.Cleanup(func() { client.Close() })
	work := meter{t: t, client: client}
	whole := 0 // commands of an uninterrupted import
	for n := range 1 + runs {
		client.FlushAll(t.Context())
		secrets := filepath.Join(t.TempDir(), "secrets")
		kills := 0
		for done := false; !done; {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "device", "import", file, "--generate", "--secrets", secrets,
				"--resume", "--cost", "4")
			cmd.Env = append(os.Environ(), "GATEHOUSECTL_OF_TEST=1", "GATEHOUSE_REDIS=redis://"+client.Options().Addr)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			limit := 0
			if n > 0 && kills < 5 {
				limit = 1 + rand.N(whole/2)
			}
			did, killed, err := work.run(cmd, limit)
			if done = err == nil; !done && !killed {
				t.Fatalf("%v: %s", err, said.String())
			}
			if n == 0 {
				whole = did
			}
			if !done {
				kills++
			}
		}
		t.Logf("%d kills", kills)
		checkImported(t, client, secrets, devices)
	}
}

// meter runs programs and counts their commands in Redis. Programs are killed after a number of commands: a time would
// mean more or less progress on a busy machine.
type meter struct {
	t      *testing.T
	client *redis.Client
	own    int // commands of the meter itself
}

// commands returns the number of commands so far.
func (m *meter) commands() int {
	m.own++
	info, err := m.client.Info(m.t.Context(), "stats").Result()
	if err != nil {
		m.t.Error(err)
	}
	_, count, _ := strings.Cut(info, "total_commands_processed:")
	total, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(count, "\n", 2)[0]))
	if err != nil {
		m.t.Error(err)
	}
	return total - m.own
}

// run runs a program, and kills it after limit commands; 0: never. did is the number of executed commands.
func (m *meter) run(cmd *exec.Cmd, limit int) (did int, killed bool, err error) {
	m.t.Helper()
	before := m.commands()
	require.NoError(m.t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for limit > 0 && !killed && len(ended) == 0 {
		if killed = m.commands()-before >= limit; killed {
			_ = cmd.Process.Kill()
		}
		<-time.After(time.Millisecond)
	}
	err = <-ended
	// A command also ends if a busy machine keeps Redis from answering in time. It can be continued, too.
	killed = killed || err != nil && strings.Contains(fmt.Sprint(cmd.Stderr), "i/o timeout")
	return m.commands() - before, killed, err
}

// checkImported checks that each device is registered, with version 1 and the right secret.
func checkImported(t *testing.T, client *redis.Client, secrets string, devices int) {
	t.Helper()
	content, err := os.ReadFile(secrets)
	require.NoError(t, err)
	generated := map[string]string{}
	for line := range strings.Lines(string(content)) {
		var k keptSecret
		if err := json.Unmarshal([]byte(line), &k); err != nil || generated[k.ID] != "" {
			t.Fatalf("%s: %v, or it comes twice", line, err)
		}
		generated[k.ID] = k.Secret
	}
	count := 0
	for c, err := range publish.New(client).ListDevices(t.Context()) {
		var i int
		if fmt.Sscanf(c.ID, "d%d", &i); err != nil || c.Version != 1 || c.Labels["n"] != fmt.Sprint(i) || len(c.Hashes) != 1 {
			t.Fatalf("got %+v, %v", c, err)
		}
		secret := generated[c.ID]
		if i%32 == 0 {
			secret = fmt.Sprint("plain-", i)
		}
		if i%32 > 1 {
			if c.Hashes[0] != readyHash {
				t.Errorf("%s has another hash", c.ID)
			}
		} else if bcrypt.CompareHashAndPassword([]byte(c.Hashes[0]), []byte(secret)) != nil {
			t.Errorf("%s has another secret", c.ID)
		}
		count++
	}
	if seq := client.Get(t.Context(), keys.SeqKey()).Val(); count != devices || seq != fmt.Sprint(devices) ||
		len(generated) != devices/32 {
		t.Errorf("%d devices, %s writes, %d secrets; want %d, %d", count, seq, len(generated), devices, devices/32)
	}
}

func TestProgress(t *testing.T) {
	begin := time.Unix(0, 0)
	for _, test := range []struct {
		p    progress
		want string
	}{
		{progress{begin: begin, what: "devices", done: 1000, size: 400, bytes: 100}, "1000 devices, 100/s, 25 %, 30s left"},
		{progress{begin: begin, what: "devices", done: 1000}, "1000 devices, 100/s"},
	} {
		if got := test.p.formatLine(begin.Add(10 * time.Second)); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// FuzzDeviceLines: any file gives valid devices or errors of its lines, in bounded memory, and ends.
func FuzzDeviceLines(f *testing.F) {
	for _, seed := range []string{"id,secret\na,b\n", "\ufeffid,hash,labels\r\n\"a\",x,\"a=b,c=d\"\r\n", "id\n\"a\n\nb",
		`{"id":"a","hashes":["` + readyHash + `"],"state":"revoked","old_until":"2030-01-31T00:00:00Z"}` + "\n{}\nnull", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines, err := newDeviceLines(bytes.NewReader(data))
		if err != nil {
			return
		}
		for {
			d, err := lines.nextDevice()
			if errors.Is(err, io.EOF) || err != nil && strings.Contains(err.Error(), "a quote is not closed") {
				break
			}
			if err != nil && !errors.Is(err, errLine) {
				t.Fatal(err)
			}
			if err == nil && d.Check() == nil && !strings.Contains(string(data), d.ID) &&
				lines.columns != nil && lines.width == 1 {
				t.Fatalf("%q is not in the file", d.ID)
			}
		}
		if most := bytes.Count(data, []byte("\n")) + 2; lines.line > most {
			t.Fatalf("%d lines, want at most %d", lines.line, most)
		}
	})
}
