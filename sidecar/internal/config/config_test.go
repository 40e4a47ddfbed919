package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/settings"
	"github.com/gatehouse/gatehouse/sidecar/internal/config"
)

// file writes a YAML file and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDefaultsAreValid(t *testing.T) {
	c, err := config.Load(nil)
	if problems := settings.FindProblems(err, c); len(problems) != 0 {
		t.Fatalf("problems: %v", problems)
	}
	if c.Memory.Bytes != 256<<20 || c.Memory.Objects != 100000 || c.Bcrypt.MaxCost != 14 || c.Bcrypt.Queue != 1024 ||
		c.Verdict.AllowTTL != 30*time.Second || c.Verdict.DenyTTL != 5*time.Second || c.Verdict.PinTTL != time.Hour {
		t.Errorf("defaults: %+v", c)
	}
	if c.BcryptWorkers() < 1 {
		t.Errorf("%d workers", c.BcryptWorkers())
	}
}

func TestPrecedence(t *testing.T) {
	path := file(t, "memory: {bytes: 1MiB, objects: 1, verdicts: 1}\nverdict:\n  pin_ttl: 0s\nlog: {format: json}\n")
	t.Setenv("GATEHOUSE_CONFIG", path)
	t.Setenv("GATEHOUSE_MEMORY_OBJECTS", "2")
	t.Setenv("GATEHOUSE_MEMORY_VERDICTS", "2")
	c, err := config.Load([]string{"--memory.verdicts", "3"})
	require.NoError(t, err)
	if c.Memory.Bytes != 1<<20 || c.Memory.Objects != 2 || c.Memory.Verdicts != 3 || c.Verdict.PinTTL != 0 ||
		c.Log.Format != "json" || c.Log.Level != "info" {
		t.Errorf("got %+v, %+v, %+v", c.Memory, c.Verdict, c.Log)
	}
}

func TestProblems(t *testing.T) {
	secret := func(text string) string {
		path := filepath.Join(t.TempDir(), "short.secret")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, test := range []struct {
		name string
		yaml string
		args []string
		want []string // parts of one problem each, in order
	}{
		{"empty file", "", nil, nil},
		{"comment only", "# nothing\n", nil, nil},
		{"unknown keys", "redis: {urls: x}\nmemroy:\n  bytes: 1MiB\n", nil,
			[]string{"yaml:1: redis.urls: unknown", "yaml:3: memroy.bytes: unknown"}},
		{"flag's spelling", "bcrypt: {max-cost: 9}\n", nil, []string{"yaml:1: bcrypt.max-cost: unknown"}},
		{"flag that is no setting", "check_config: true\n", nil, []string{"yaml:1: check_config: unknown"}},
		{"bad values", "memory:\n  bytes: 2XB\n  objects: many\nverdict: {allow_ttl: 30}\n", nil,
			[]string{"yaml:2: memory.bytes", "yaml:3: memory.objects", "yaml:4: verdict.allow_ttl"}},
		{"bad value where a flag counts", "memory: {bytes: 2XB}\n", []string{"--memory.bytes=1MiB"},
			[]string{"yaml:1: memory.bytes"}},
		{"twice", "log: {level: info}\nmemory:\n  objects: 5\n  objects: 6\n", nil,
			[]string{"yaml:4: memory.objects: set in line 3"}},
		{"list", "redis:\n- url\n", nil, []string{"yaml:2: redis: want one value"}},
		{"no value", "redis:\n  url:\n", nil, []string{"yaml:2: redis.url: no value"}},
		{"not a mapping", "hello\n", nil, []string{"want a mapping"}},
		{"two documents", "log: {level: info}\n---\nlog: {level: warn}\n", nil, []string{"more than one"}},
		{"alias", "log: &a\n  level: *a\n", nil, []string{"aliases"}},
		{"not YAML", "a: [\n", nil, []string{"yaml: line"}},
		{"all values at once", "", []string{
			"--redis.url=mysql://x", "--redis.pool-size=0", "--redis.shards=65", "--redis.namespace=a.b",
			"--redis.device-namespace=A",
			"--push.socket=", "--api.socket=" + strings.Repeat("x", 104), "--admin.address=9090",
			"--admin.metrics=9090", "--memory.bytes=1KiB",
			"--memory.objects=0", "--memory.verdicts=-1", "--bcrypt.workers=-1", "--bcrypt.queue=0", "--bcrypt.max-cost=16",
			"--verdict.allow-ttl=1ms", "--verdict.deny-ttl=-1s", "--verdict.pin-ttl=10000h",
			"--log.level=loud", "--log.format=xml",
		}, []string{
			"redis.url", "redis.pool_size: 0 is out of 1 to 1024", "redis.shards: 65 is out of 1 to 64",
			`redis.namespace: "a.b": want 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit`,
			`redis.device_namespace: "A": want`,
			"push.socket", "api.socket", "admin.address", "admin.metrics", "memory.bytes", "memory.objects", "memory.verdicts",
			"bcrypt.workers", "bcrypt.queue", "bcrypt.max_cost: 16 is out of 4 to 15", "verdict.allow_ttl",
			"verdict.deny_ttl", "verdict.pin_ttl", "log.level", "log.format",
		}},
		{"password twice", "redis: {url: 'redis://u:hunter2@h', username: v}",
			[]string{"--redis.password-file=/no/such"}, []string{
				"redis.password_file: the url has a password too", "redis.username: the url has a user too",
				"redis.password_file: open /no/such",
			}},
		{"replicas that nobody names", "redis: {read: replica}", nil, []string{
			"redis.read: replica: the url names no sentinels"}},
		{"replicas of a Cluster", "redis: {url: 'redis+cluster://h', read: 'r:6379'}", nil, []string{
			"redis.read: a Cluster sends events past replication"}},
		{"no replica's address", "redis: {read: 'redis://r'}", nil, []string{
			`redis.read: "redis://r": want a name or address`}},
		{"TLS files without TLS", "redis: {tls_ca_file: ca.pem}", nil, []string{"redis.tls_ca_file: the url is not of TLS"}},
		{"secret of the fleet", "verdict: {pin_ttl: 0s}", []string{"--verdict.secret-file=" + secret("short\n")}, []string{
			"short.secret: a secret of 5 bytes, at least 32 are needed",
			"verdict.secret_file: has no effect with verdict.pin_ttl 0",
		}},
		{"large secret", "", []string{"--verdict.secret-file=" + secret(strings.Repeat("x", 4097))},
			[]string{"over 4096 bytes, too large for a secret"}},
		{"authority", "authority: {url: 'grpc://a', invalidate_address: a}", nil, []string{
			"authority.url: want grpc://host:port",
			"authority.invalidate_address, authority.invalidate_token_file: come together",
			"authority.invalidate_address: \"a\": want host:port"}},
		{"no token", "authority: {url: 'http://a', invalidate_address: 'a:1', invalidate_token_file: /no/such}", nil,
			[]string{"authority.invalidate_token_file: open /no/such"}},
		{"no secret", "verdict: {secret_file: /no/such}", nil, []string{"verdict.secret_file: open /no/such"}},
		{"sessions", "session: {secret_file: /no/such, rotate: 1h, ttl: 2h, issuer: ''}", nil, []string{
			"session.secret_file: open /no/such", "session.ttl: 2h0m0s is out of 1m0s to session.rotate, 1h0m0s",
			"session.issuer: 0 bytes",
		}},
		{"session times", "", []string{"--session.rotate=9m59s", "--session.ttl=59s"},
			[]string{"session.rotate: 9m59s, want whole seconds of 10m0s", "session.ttl: 59s"}},
		{"session.rotate in parts of seconds", "", []string{"--session.rotate=1h0.5s"}, []string{"session.rotate: 1h0m0.5s"}},
		{"traces", "trace: {endpoint: 'http://user:hunter2@h:4318', ratio: 1.5}", nil,
			[]string{"trace.endpoint: want http://HOST:PORT", "trace.ratio: 1.5 is out of 0 to 1"}},
		{"traces elsewhere", "trace: {endpoint: 'h:4318', ratio: nan}", nil, []string{"trace.endpoint", "trace.ratio: NaN"}},
		{"good traces", "trace: {endpoint: 'https://h/v1/traces', ratio: 1}", nil, nil},
		{"one socket for two", "", []string{"--api.socket=/a", "--push.socket=/a"}, []string{"api.socket"}},
		{"misspelt names", "redis: {nmaespace: a, password: b, tls-ca-file: c}\nbcrypt: {costs: 1}", nil, []string{
			"sidecar.yaml:1: redis.nmaespace: unknown setting, did you mean redis.namespace?",
			"did you mean redis.password_file?", "did you mean redis.tls_ca_file?",
			"sidecar.yaml:2: bcrypt.costs: unknown setting"}},
		{"unknown flag", "", []string{"--redis.urls=x"}, []string{"unknown flag --redis.urls"}},
		{"argument", "", []string{"x"}, []string{"unexpected argument x"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := config.Load(append([]string{"--config", file(t, test.yaml)}, test.args...))
			problems := settings.FindProblems(err, c)
			if len(problems) != len(test.want) {
				t.Fatalf("got %d problems, want %d:\n%v", len(problems), len(test.want), problems)
			}
			for i, want := range test.want {
				if !strings.Contains(problems[i].Error(), want) {
					t.Errorf("problem %d: %q, want %q in it", i, problems[i], want)
				}
			}
		})
	}
	if c, err := config.Load([]string{"--config", "/no/such/file"}); !strings.Contains(
		fmt.Sprint(settings.FindProblems(err, c)), "/no/such/file") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestSecret(t *testing.T) {
	long := strings.Repeat("s", 32)
	for text, want := range map[string]string{long: long, " \t" + long + "\r\n": long,
		long[:16] + " " + long[16:]: long[:16] + " " + long[16:]} {
		got, err := (&config.Verdict{SecretFile: file(t, text)}).ReadSecret()
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	if got, err := (&config.Verdict{SecretFile: file(t, long[1:]+"\n")}).ReadSecret(); err == nil ||
		strings.Contains(err.Error(), "sss") {
		t.Errorf("31 bytes: %q, %v; want an error that does not show them", got, err)
	}
	if got, err := new(config.Verdict).ReadSecret(); got != nil || err != nil {
		t.Errorf("no file: %q, %v; want none", got, err)
	}
}

// TestSessionSettings reads secrets from their file, and draws a random secret without a file.
func TestSessionSettings(t *testing.T) {
	secret := strings.Repeat("s", 32)
	c, err := config.Load([]string{"--session.secret-file", file(t, secret+"\n"),
		"--session.ttl=5m", "--session.rotate=2h", "--session.issuer=edge"})
	if problems := settings.FindProblems(err, c); len(problems) != 0 {
		t.Fatal(problems)
	}
	got, err := c.Session.Settings()
	if err != nil || len(got.Secrets) != 1 || got.Secrets[0] != secret || got.TTL != 5*time.Minute ||
		got.Rotate != 2*time.Hour || got.Issuer != "edge" {
		t.Errorf("got %+v, %v", got, err)
	}
	c.Session.SecretFile = ""
	one, _ := c.Session.Settings()
	other, _ := c.Session.Settings()
	if len(one.Secrets) != 1 || one.Secrets[0] == other.Secrets[0] {
		t.Errorf("got %q and %q, want two that were drawn", one.Secrets, other.Secrets)
	}
	c.Session.SecretFile = "/no/such"
	if _, err := c.Session.Settings(); err == nil || !strings.Contains(err.Error(), "session.secret_file") {
		t.Errorf("got %v, want an error that names the setting", err)
	}
}

func TestPasswordIsNeverShown(t *testing.T) {
	for _, url := range []string{
		"redis://:hunter2@host:bad", "redis://u:hunt/er2@host", "redis://u:hunter2@host/db/x", "redis://:1/hunter2@host",
		"hunter2", "redis://u:hunter2%zz@h",
	} {
		t.Setenv("GATEHOUSE_REDIS_URL", url)
		c, err := config.Load(nil)
		problems := settings.FindProblems(err, c)
		if len(problems) == 0 {
			t.Errorf("%s: no problem", url)
		}
		if said := fmt.Sprint(problems); strings.Contains(said, "hunt") || strings.Contains(said, "er2") {
			t.Errorf("%s: the password is in %q", url, said)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]config.Bytes{"0": 0, "7": 7, "7B": 7, "3KiB": 3 << 10, "256MiB": 256 << 20,
		"2GiB": 2 << 30, "1TiB": 1 << 40} {
		var got config.Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
		var again config.Bytes
		if err := again.UnmarshalText([]byte(got.String())); err != nil || again != got {
			t.Errorf("%q: written as %q, which is %d, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "MiB", "1MB", "-1", "1.5MiB", "1 MiB", "9999999999TiB", "99999999999999999999"} {
		if err := new(config.Bytes).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// TestNegativeValues: a negative value is a normal error, and hides no other error.
func TestNegativeValues(t *testing.T) {
	c, err := config.Load([]string{"--bcrypt.queue", "-1", "--memory.objects", "-7", "--bcrypt.max-cost=99"})
	require.NoError(t, err)
	problems := fmt.Sprint(settings.FindProblems(err, c))
	for _, want := range []string{"bcrypt.queue: -1", "memory.objects: -7", "bcrypt.max_cost: 99"} {
		if !strings.Contains(problems, want) {
			t.Errorf("%s, want it to have %s", problems, want)
		}
	}
}

// TestPeppers reads peppers that the flags, the environment and the file name.
func TestPeppers(t *testing.T) {
	one, two := file(t, strings.Repeat("1", 32)+"\n"), file(t, strings.Repeat("2", 64))
	load := func(args ...string) (*config.Config, []error) {
		c, err := config.Load(args)
		return c, settings.FindProblems(err, c)
	}
	byFile := "--config=" + file(t, "credential: {pepper_file: '"+one+","+two+"', upgrade: true}")
	for _, args := range [][]string{{byFile}, {"--credential.pepper-file=" + one, "--credential.pepper-file", two}} {
		c, problems := load(args...)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if peppers, err := c.Credential.ReadPeppers(); err != nil || len(peppers) != 2 || peppers[0].ID == peppers[1].ID {
			t.Errorf("%v: %v, %v", args, len(peppers), err)
		}
	}
	t.Setenv("GATEHOUSE_CREDENTIAL_PEPPER_FILE", two+","+one)
	if c, problems := load(); len(problems) > 0 || c.Credential.PepperFile[0] != two {
		t.Errorf("the environment: %v, %v", c.Credential, problems)
	}
	for want, args := range map[string][]string{
		"a pepper of 3 bytes": {"--credential.pepper-file=" + file(t, "abc")},
		"is the same pepper":  {"--credential.pepper-file=" + one, "--credential.pepper-file=" + one},
		"no such file":        {"--credential.pepper-file=/no/such"},
		"over 4096 bytes":     {"--credential.pepper-file=" + file(t, strings.Repeat("p", 4097))},
	} {
		if _, problems := load(args...); len(problems) != 1 || !strings.Contains(fmt.Sprint(problems), want) ||
			strings.Contains(fmt.Sprint(problems), "abc") {
			t.Errorf("got %v, want %s", problems, want)
		}
	}
	t.Setenv("GATEHOUSE_CREDENTIAL_PEPPER_FILE", "")
	_, problems := load("--credential.upgrade")
	if !strings.Contains(fmt.Sprint(problems), "credential.upgrade: has no effect") {
		t.Errorf("without a pepper: %v", problems)
	}
}
