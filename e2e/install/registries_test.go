package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
)

const (
	module = "github.com/gatehouse/gatehouse"
	root   = "../.."
	built  = root + "/build/install" // by scripts/install-check.sh
)

// registries are what users install from, with the release of the tree.
type registries struct {
	version string // without v
	work    string // a directory for all that is temporary
	tree    string // a clone of the tree, with its tag
	env     []string
	helm    string // the program
	maven   string // the repository with the Java package, a URL
}

// publish publishes the tree, with changes of tracked files, as version.
func publish(ctx context.Context, work string) (*registries, func(), error) {
	r := &registries{version: os.Getenv("VERSION"), helm: os.Getenv("HELM"), work: work, tree: filepath.Join(work, "tree")}
	var ends []func()
	end := func() {
		for _, f := range ends {
			f()
		}
	}
	if r.version == "" || r.helm == "" {
		return r, end, errors.New("run it by make install-check")
	}
	r.env = append(withoutSettings(os.Environ()), "HOME="+work, "PATH="+filepath.Join(work, "bin")+":"+os.Getenv("PATH"))
	for _, step := range []func(context.Context) (func(), error){
		r.publishModules, r.publishPython, r.publishNode, r.publishJava, r.publishChart,
	} {
		stop, err := step(ctx)
		if stop != nil {
			ends = append(ends, stop)
		}
		if err != nil {
			return r, end, err
		}
	}
	return r, end, nil
}

// withoutSettings returns the environment without the user's settings of package managers.
func withoutSettings(env []string) []string {
	var kept []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if lower := strings.ToLower(name); name == "GOFLAGS" || name == "GOWORK" || strings.HasPrefix(name, "PIP_") ||
			strings.HasPrefix(lower, "npm_config_") || strings.HasPrefix(name, "MAVEN_") || name == "VERSION" {
			continue
		}
		kept = append(kept, e)
	}
	return kept
}

// run runs a program in dir, and returns its output.
func (r *registries) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, r.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// serve serves a handler on loopback, and returns the address.
func serve(handler http.Handler) (string, func()) {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	return strings.TrimPrefix(server.URL, "http://"), server.Close
}

// publishModules makes the tags of a release as the pipeline does, and a module proxy from these tags by Go, as
// proxy.golang.org does.
func (r *registries) publishModules(ctx context.Context) (func(), error) {
	origin, err := filepath.Abs(filepath.Join(r.work, "origin"))
	if err != nil {
		return nil, err
	}
	settings, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOPROXY", "GOCACHE").Output()
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(settings), "\n")
	fetched := filepath.Join(r.work, "fetched")
	script := `
		changed=$(git -C "$1" -c user.name=test -c user.email=test@localhost stash create)
		git clone --quiet --bare --shared "$1" "$2"
		git -C "$2" tag -l | xargs -r git -C "$2" tag -d >/dev/null
		git -C "$2" branch to-release "${changed:-HEAD}"
		git clone --quiet --shared --branch to-release "$2" "$3"
		"$3"/release/version.sh tag "$4"
		cd / && GOFLAGS=-modcacherw GOMODCACHE=$5 GOPROXY=direct GOSUMDB=off GIT_CONFIG_COUNT=1 \
			GIT_CONFIG_KEY_0=url.file://$2.insteadOf GIT_CONFIG_VALUE_0=https://$6 \
			go mod download "$6@v$4" "$6/clients/go@v$4"`
	source, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if _, err := r.run(ctx, ".", "bash", "-euo", "pipefail", "-c", script, "publish", source, origin, r.tree, r.version,
		fetched, module); err != nil {
		return nil, err
	}
	address, stop := serve(http.FileServer(http.Dir(filepath.Join(fetched, "cache/download"))))
	// Modules of others come from the user's cache, or from where the user has them.
	r.env = append(r.env, "GOPROXY=http://"+address+",file://"+lines[0]+"/cache/download,"+lines[1], "GOSUMDB=off",
		"GOCACHE="+lines[2], "GOFLAGS=-modcacherw -trimpath", "CGO_ENABLED=0", "GOPATH="+filepath.Join(r.work, "go"))
	return stop, nil
}

// publishPython makes an index of PEP 503. pip installs into the environment that is active, $VIRTUAL_ENV.
func (r *registries) publishPython(ctx context.Context) (func(), error) {
	index := filepath.Join(r.work, "python/simple")
	wheels, err := filepath.Glob(built + "/wheels/*")
	if err != nil {
		return nil, err
	}
	ours, err := filepath.Glob(built + "/packages/*.whl")
	if err != nil {
		return nil, err
	}
	for _, file := range append(wheels, ours...) {
		name, _, _ := strings.Cut(filepath.Base(file), "-")
		dir := filepath.Join(index, strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(name)))
		if _, err := r.run(ctx, ".", "install", "-D", "-m", "644", "-t", dir, file); err != nil {
			return nil, err
		}
	}
	if err := r.writeProgram("pip", `exec `+os.Getenv("PIP")+` --python "$VIRTUAL_ENV/bin/python" "$@"`); err != nil {
		return nil, err
	}
	address, stop := serve(http.FileServer(http.Dir(filepath.Join(r.work, "python"))))
	r.env = append(r.env, "PIP_INDEX_URL=http://"+address+"/simple/", "PIP_CONFIG_FILE=/dev/null", "PIP_NO_CACHE_DIR=1",
		"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_QUIET=1")
	return stop, nil
}

// writeProgram writes a shell script into the PATH of the commands.
func (r *registries) writeProgram(name, text string) error {
	path := filepath.Join(r.work, "bin", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte("#!/bin/bash\n"+text+"\n"), 0o755)
}

// publishNode runs Verdaccio, which has other packages from the user's registry, and publishes the package there.
func (r *registries) publishNode(ctx context.Context) (func(), error) {
	upstream, err := exec.CommandContext(ctx, "npm", "config", "get", "registry").Output()
	if err != nil {
		return nil, err
	}
	base, err := filepath.Abs(built)
	if err != nil {
		return nil, err
	}
	storage := filepath.Join(base, "npm-storage") // kept for the next run
	if err := os.RemoveAll(filepath.Join(storage, "@gatehouse")); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`
storage: %q
auth: {htpasswd: {file: %q}}
uplinks: {upstream: {url: %q}}
packages: # the first match wins
  "@gatehouse/*": {access: $all, publish: $authenticated}
  "**": {access: $all, proxy: upstream}
log: {type: stdout, level: warn}
`, storage, filepath.Join(r.work, "htpasswd"), strings.TrimSpace(string(upstream)))
	file := filepath.Join(r.work, "verdaccio.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	address, err := freeport.FindAddress()
	if err != nil {
		return nil, err
	}
	server := exec.CommandContext(ctx, "node", filepath.Join(base, "verdaccio/node_modules/verdaccio/bin/verdaccio"),
		"--config", file, "--listen", address)
	var output strings.Builder
	server.Dir, server.Env, server.Stdout, server.Stderr = r.work, r.env, &output, &output
	if err := server.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	stop := func() { server.Process.Kill(); <-ended }
	r.env = append(r.env, "npm_config_registry=http://"+address+"/", "npm_config_cache="+filepath.Join(r.work, "npm"),
		"npm_config_audit=false", "npm_config_fund=false", "npm_config_update_notifier=false")
	ready := time.NewTicker(50 * time.Millisecond)
	defer ready.Stop()
	for deadline := time.Now().Add(time.Minute); ; {
		response, err := http.Get("http://" + address + "/-/ping")
		if err == nil {
			response.Body.Close()
			break
		}
		select {
		case err := <-ended:
			ended <- err
			return stop, fmt.Errorf("verdaccio: %w\n%s", err, &output)
		case <-ready.C:
		}
		if time.Now().After(deadline) {
			return stop, fmt.Errorf("verdaccio isn't ready after a minute: %w", err)
		}
	}
	_, err = r.run(ctx, ".", "bash", "-euo", "pipefail", "-c", `
		token=$(curl --fail --silent --show-error --request PUT --header 'content-type: application/json' \
			--data '{"name": "release", "password": "a password"}' "http://$1/-/user/org.couchdb.user:release" |
			sed -n 's/.*"token": *"\([^"]*\)".*/\1/p')
		echo "//$1/:_authToken=$token" >~/.npmrc
		npm publish --access public --loglevel error "$2"`, "publish", address,
		filepath.Join(base, "packages/gatehouse-client-"+r.version+".tgz"))
	return stop, err
}

// publishJava deploys the package to a repository by Maven.
func (r *registries) publishJava(ctx context.Context) (func(), error) {
	base, err := filepath.Abs(built)
	if err != nil {
		return nil, err
	}
	r.maven = "file://" + filepath.Join(r.work, "maven")
	jar := filepath.Join(base, "packages/gatehouse-client-"+r.version)
	_, err = r.run(ctx, r.work, "mvn", "--batch-mode", "--quiet",
		"org.apache.maven.plugins:maven-deploy-plugin:3.1.4:deploy-file", "-Durl="+r.maven, "-Dfile="+jar+".jar",
		"-DpomFile="+jar+".pom")
	return nil, err
}

// publishChart pushes the chart to a registry. The helm in the commands' PATH replaces ghcr.io by this registry, and
// renders what a cluster would get.
func (r *registries) publishChart(ctx context.Context) (func(), error) {
	address, stop := serve(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	if err := r.writeProgram("helm", `
		args=("${@//oci:\/\/ghcr.io/oci://`+address+`}")
		[[ $1 != upgrade || $2 != --install ]] || args=(install "${args[@]:2}")
		[[ ${args[0]} != install ]] || args[0]=template
		exec `+r.helm+` "${args[@]}" --plain-http`); err != nil {
		return stop, err
	}
	if _, err := r.run(ctx, r.work, r.helm, "package", filepath.Join(r.tree, "charts/gatehouse"), "--version", r.version,
		"--app-version", r.version); err != nil {
		return stop, err
	}
	_, err := r.run(ctx, r.work, r.helm, "push", "--plain-http", "gatehouse-"+r.version+".tgz",
		"oci://"+address+"/gatehouse/charts")
	return stop, err
}
