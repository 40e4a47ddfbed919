package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
)

// patience bounds how long a condition may take.
const patience = 2 * time.Minute

// TestMain lets a test run the program in a separate process, and kill the process.
func TestMain(m *testing.M) {
	if os.Getenv("GATEHOUSE_POSTGRES_OF_TEST") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// await waits until check returns no error.
func await(t *testing.T, what string, check func() error) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) { // yields between two checks
		err := check()
		if err == nil {
			return
		}
		if time.Since(begin) > patience {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// database is a Postgres for tests to kill.
type database struct {
	t              *testing.T
	bin, dir, port string
	account        *syscall.SysProcAttr
	cmd            *exec.Cmd
}

func startDatabase(t *testing.T) *database {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if path, err := exec.LookPath("postgres"); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		t.Fatal("postgres is missing; run: scripts/install-packages.sh unit")
	}
	d := &database{t: t, bin: filepath.Dir(found[0]), dir: t.TempDir(), account: &syscall.SysProcAttr{}}
	if os.Getuid() == 0 { // Postgres refuses to run as root
		account, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		d.account.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := errors.Join(os.Chown(d.dir, uid, gid), os.Chmod(filepath.Dir(d.dir), 0o711)); err != nil {
			t.Fatal(err)
		}
	}
	_, d.port, _ = strings.Cut(redistest.FreeAddress(t), ":")
	initialize := exec.Command(filepath.Join(d.bin, "initdb"), "-D", d.dir+"/data", "-A", "trust", "-U", "postgres", "-N")
	initialize.SysProcAttr, initialize.Dir = d.account, d.dir
	if out, err := initialize.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	t.Cleanup(d.kill)
	d.start()
	return d
}

func (d *database) url() string { return "postgres://postgres@127.0.0.1:" + d.port + "/postgres" }

// start starts Postgres, and waits for an answer.
func (d *database) start() {
	d.t.Helper()
	var exited chan struct{}
	run := func() {
		d.cmd = exec.Command(filepath.Join(d.bin, "postgres"), "-D", d.dir+"/data", "-p", d.port, "-k", d.dir,
			"-c", "wal_level=logical", "-c", "fsync=off", "-c", "shared_buffers=16MB")
		d.cmd.SysProcAttr, d.cmd.Dir = d.account, d.dir
		if err := d.cmd.Start(); err != nil {
			d.t.Fatal(err)
		}
		exited = make(chan struct{})
		go func(cmd *exec.Cmd, exited chan struct{}) { _ = cmd.Wait(); close(exited) }(d.cmd, exited)
	}
	run()
	await(d.t, "postgres", func() error {
		select {
		case <-exited: // processes of the previous Postgres were still running
			run()
		default:
		}
		c, err := pgx.Connect(d.t.Context(), d.url())
		if err == nil {
			err = c.Close(d.t.Context())
		}
		return err
	})
}

// kill ends Postgres by SIGKILL.
func (d *database) kill() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill()
		d.cmd = nil
	}
}

// exec repeats SQL until success, also if the SQL may have been committed.
func (d *database) exec(sql string) {
	d.t.Helper()
	await(d.t, sql, func() error {
		c, err := pgx.Connect(d.t.Context(), d.url())
		if err != nil {
			return err
		}
		defer c.Close(context.Background())
		_, err = c.Exec(d.t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// rows returns the rows by key, in the program's format.
func (d *database) rows() map[string]string {
	d.t.Helper()
	c, err := pgx.Connect(d.t.Context(), d.url())
	if err != nil {
		d.t.Fatal(err)
	}
	defer c.Close(context.Background())
	rows, err := c.Query(d.t.Context(), "SELECT id, n, coalesce(to_json(name)::text, 'null'), "+
		"coalesce(price::text, 'null'), coalesce(live::text, 'null') FROM products")
	if err != nil {
		d.t.Fatal(err)
	}
	all := map[string]string{}
	for rows.Next() {
		var id, n int
		var name, price, live string
		if err := rows.Scan(&id, &n, &name, &price, &live); err != nil {
			d.t.Fatal(err)
		}
		all[fmt.Sprint("/v1/products/", id)] = fmt.Sprintf(`{"id":%d,"n":%d,"name":%s,"price":%s,"live":%s}`, id, n, name,
			price, live)
	}
	if err := rows.Err(); err != nil {
		d.t.Fatal(err)
	}
	return all
}

// program is the running program.
type program struct {
	t    *testing.T
	args []string
	cmd  *exec.Cmd
	said bytes.Buffer
}

func (p *program) start() {
	p.t.Helper()
	p.cmd = exec.CommandContext(p.t.Context(), os.Args[0], p.args...)
	p.cmd.Env = append(os.Environ(), "GATEHOUSE_POSTGRES_OF_TEST=1")
	p.cmd.Stderr = &p.said // the processes are awaited
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

const schema = `CREATE TABLE products (id bigint PRIMARY KEY, n int NOT NULL, name text, price numeric, live bool);
ALTER TABLE products REPLICA IDENTITY FULL; CREATE PUBLICATION gatehouse FOR TABLE products;
INSERT INTO products SELECT i, 0, 'product ' || i, i + 0.50, i % 2 = 0 FROM generate_series(1, 100) i;
UPDATE products SET name = NULL, live = NULL WHERE id = 7`

// TestFollow kills the program and Postgres at random moments, also during the snapshot, while rows change: in the end
// Gatehouse has the table, and every committed row of the counters was published once and in order.
func TestFollow(t *testing.T) {
	kills, counters := 12, 5
	if testing.Short() {
		kills = 4
	}
	d := startDatabase(t)
	d.exec(schema)
	server := redistest.StartServer(t)
	client := redis.NewClient(&redis.Options{Addr: server.Address})
	t.Cleanup(func() { client.Close() })
	publisher := publish.New(client)
	subscription := client.Subscribe(t.Context(), contract.Keys{}.EventsChannel())
	t.Cleanup(func() { subscription.Close() })
	if _, err := subscription.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	events := subscription.Channel(redis.WithChannelSize(1<<20), redis.WithChannelSendTimeout(time.Minute))

	p := &program{t: t, args: []string{"--database", d.url(), "--redis", "redis://" + server.Address}}
	p.start()
	t.Cleanup(func() { t.Logf("the program said:\n%s", p.said.String()) })
	for n := 1; n <= 5; n++ { // perhaps during a snapshot, to be begun again
		d.exec(fmt.Sprintf("UPDATE products SET n = %d; DELETE FROM products WHERE id = %d", n, 20+n))
		p.kill()
		p.start()
	}
	await(t, "the slot", func() error {
		c, err := pgx.Connect(t.Context(), d.url())
		if err != nil {
			return err
		}
		defer c.Close(context.Background())
		var n int
		return c.QueryRow(t.Context(), "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'gatehouse'").Scan(&n)
	})
	large := strings.Repeat("large ", 2000)
	const first = 1000
	end := first + kills*10 - 1
	for n := first; n <= end; n++ {
		// Each transaction increments all counters once; the remaining rows come, go and change ids.
		id := 50 + rand.IntN(50)
		change := []string{
			fmt.Sprintf("DELETE FROM products WHERE id = %d", id),
			fmt.Sprintf("INSERT INTO products VALUES (%d, %d, '%s', NULL, true) "+
				"ON CONFLICT (id) DO UPDATE SET name = '<ü> \"'", id, n, large+strconv.FormatUint(rand.Uint64(), 36)),
			fmt.Sprintf("UPDATE products SET id = id + %d WHERE id = %d", n*1000, id),
			fmt.Sprintf("UPDATE products SET price = price + 1 WHERE id >= %d", id),
			"UPDATE products SET n = -n WHERE id <= 5; UPDATE products SET n = -n WHERE id <= 5", // and back
		}[rand.IntN(5)]
		d.exec(fmt.Sprintf("BEGIN; UPDATE products SET n = %d WHERE id <= %d; %s; COMMIT", n, counters, change))
		switch {
		case n%10 == 3:
			p.kill()
			p.start()
		case n%20 == 9:
			d.kill()
			d.start()
		}
	}
	same := func() error {
		want := d.rows()
		got := 0
		for e, err := range publisher.List(t.Context(), "/") {
			if err != nil {
				return err
			}
			got++
			if e.ETag != publish.ETag("application/json", []byte(want[e.Key])) {
				o, _ := publisher.Get(t.Context(), e.Key)
				return fmt.Errorf("%s: %.200q, want %.200q", e.Key, o.Bodies, want[e.Key])
			}
		}
		if got != len(want) {
			return fmt.Errorf("%d objects, want %d", got, len(want))
		}
		return nil
	}
	await(t, "the objects to be as the table", same)
	d.exec("BEGIN; TRUNCATE products; INSERT INTO products VALUES (1, 9999, 'after', 1, true); COMMIT")
	await(t, "the objects after a truncation", same)
	p.kill()

	// Once and in order: the numbers of each counter.
	last := map[string]int{}
	for {
		var message *redis.Message
		select {
		case message = <-events:
		case <-time.After(patience):
			t.Fatalf("no last event: %v", last)
		}
		e, err := contract.ParseEvent(message.Payload)
		if err != nil {
			t.Fatal(err)
		}
		var row struct{ ID, N int }
		_ = json.Unmarshal([]byte(e.Fields[contract.FieldBody]), &row)
		if row.ID < 1 || row.ID > counters {
			continue
		}
		if row.N == 9999 {
			break
		}
		key := e.Member.ID
		before, found := last[key]
		if !found {
			before = first - 1
		}
		if row.N >= first && row.N != before+1 {
			t.Errorf("%s: %d after %d", key, row.N, before)
		}
		if row.N >= first {
			last[key] = row.N
		}
	}
	for key, n := range last {
		if n != end {
			t.Errorf("%s: ends with %d, want %d", key, n, end)
		}
	}
	if len(last) != counters {
		t.Errorf("%d counters, want %d", len(last), counters)
	}
}

// TestDeferred: in one statement each row takes a different row's key.
func TestDeferred(t *testing.T) {
	d := startDatabase(t)
	d.exec("CREATE TABLE products (id bigint PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, name text); " +
		"ALTER TABLE products REPLICA IDENTITY FULL; CREATE PUBLICATION gatehouse FOR TABLE products; " +
		"INSERT INTO products VALUES (1, 'a'), (2, 'b'), (3, 'c')")
	client := redistest.StartServer(t).Client(t)
	f := &follower{database: d.url(), table: "products", column: "id", prefix: "/v1/products/", name: "gatehouse",
		publisher: publish.New(client)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.follow(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	names := func(want string) {
		t.Helper()
		await(t, "the names "+want, func() error {
			got := ""
			for id := 1; id <= 3; id++ {
				o, err := f.publisher.Get(ctx, fmt.Sprint("/v1/products/", id))
				if err != nil {
					return err
				}
				var row struct{ Name string }
				_ = json.Unmarshal(o.Bodies[0].Bytes, &row)
				got += row.Name
			}
			if got != want {
				return errors.New(got)
			}
			return nil
		})
	}
	names("abc")
	d.exec("UPDATE products SET id = id % 3 + 1")
	names("cab")
	d.exec("BEGIN; UPDATE products SET id = id % 3 + 1; UPDATE products SET id = id % 3 + 1; COMMIT")
	names("abc")
}
