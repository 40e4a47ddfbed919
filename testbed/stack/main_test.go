package stack

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// helperVariable makes this test binary act as a child of the stack instead of testing.
const helperVariable = "GATEHOUSE_STACK_HELPER"

func TestMain(m *testing.M) {
	switch role := os.Getenv(helperVariable); role {
	case "":
		os.Exit(m.Run())
	case "child":
		os.Exit(playChild(os.Args[1:]))
	case "parent":
		os.Exit(playParent(program{path: os.Args[0], args: []string{"--admin.address", os.Args[2]}}, os.Args[1]))
	case "parent of nginx":
		os.Exit(playParent(workerOfNginx(os.Args[1], os.Args[2]), os.Args[1]))
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
}

// playChild parses the flags of Envoy and of the sidecar that are needed to answer both programs' readiness checks. The
// edge is the second address in the configuration.
func playChild(args []string) int {
	flags := flag.NewFlagSet("child", flag.ContinueOnError)
	config := flags.String("config-path", "", "")
	admin := flags.String("admin.address", "", "")
	for _, ignored := range []string{"concurrency", "log-level", "redis.url", "push.socket", "api.socket", "edge.admin"} {
		flags.String(ignored, "", "")
	}
	flags.Bool("disable-hot-restart", false, "")
	failing := flags.String("fail", "", "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	fmt.Println("child says hello")
	if *failing != "" {
		fmt.Println(*failing)
		return 7
	}
	addresses := []string{*admin}
	if *config != "" {
		addresses = addressesOf(*config)
	}
	failed := make(chan error)
	for _, address := range addresses {
		server := &http.Server{Addr: address, Handler: http.HandlerFunc(answerReady), ReadHeaderTimeout: time.Second}
		go func() { failed <- server.ListenAndServe() }()
	}
	fmt.Println(<-failed)
	return 1
}

func answerReady(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/ready", "/readyz":
	case "/exit":
		fmt.Println("asked to exit")
		os.Exit(9)
	default:
		http.NotFound(w, r)
	}
}

// addressesOf returns the addresses of the admin interface and of the edge in an Envoy configuration.
func addressesOf(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	type address struct {
		Socket struct {
			Address string `yaml:"address"`
			Port    string `yaml:"port_value"`
		} `yaml:"socket_address"`
	}
	var config struct {
		Admin struct {
			Address address `yaml:"address"`
		} `yaml:"admin"`
		Static struct {
			Listeners []struct {
				Address address `yaml:"address"`
			} `yaml:"listeners"`
		} `yaml:"static_resources"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		panic(err)
	}
	admin, edge := config.Admin.Address.Socket, config.Static.Listeners[0].Address.Socket
	return []string{net.JoinHostPort(admin.Address, admin.Port), net.JoinHostPort(edge.Address, edge.Port)}
}

// workerOfNginx returns an nginx with a worker that listens on address.
func workerOfNginx(dir, address string) program {
	path, err := FindNginx()
	if err != nil {
		panic(err)
	}
	config := filepath.Join(dir, "nginx.conf")
	text := "worker_processes 1; daemon off; pid nginx.pid; events {} http { access_log off;"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += fmt.Sprintf(" %[1]s_temp_path %[1]s;", kind)
	}
	if err := os.WriteFile(config, []byte(text+" server { listen "+address+"; } }"), 0o600); err != nil {
		panic(err)
	}
	return program{path: path, args: []string{"-p", dir, "-c", config, "-e", "stderr"}, group: true}
}

// playParent starts a child with a log in directory dir, and waits to be killed.
func playParent(p program, dir string) int {
	p.name, p.env, p.log = "child", []string{helperVariable + "=child"}, filepath.Join(dir, "child.log")
	child, err := start(p, func(err error) { fmt.Println(err) })
	if err != nil {
		fmt.Println(err)
		return 1
	}
	<-child.done
	return 1
}
