// Package install runs the commands of the documentation that install Gatehouse or copy parts of it, word by word, in
// empty directories, against registries on loopback that have the tree as a release: make install-check.
package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

var from *registries

func TestMain(m *testing.M) {
	os.Exit(func() int {
		work, err := os.MkdirTemp("", "install")
		if err != nil {
			fmt.Fprintln(os.Stderr, "install:", err)
			return 1
		}
		defer os.RemoveAll(work)
		registries, end, err := publish(context.Background(), work)
		defer end()
		if err != nil {
			fmt.Fprintln(os.Stderr, "install:", err)
			return 1
		}
		from = registries
		return m.Run()
	}())
}

// installation is commands of a page that belong together, what is there before, and what shows that they worked.
type installation struct {
	page     string
	commands []string // the beginning of each; the rest is read from the page
	before   string   // shell, in the directory that the commands run in
	after    string
	want     string // in the output of after; VERSION stands for the release
	inTree   bool   // in a clone of the repository, not in an empty directory
}

const (
	goProgram    = `go mod init example.org/writer; cp "$TREE"/clients/go/publish/example_test.go .`
	checkProgram = `go vet . && go list -m ` + module + `/clients/go`
	venv         = `python3 -m venv --without-pip venv`
	python       = `venv/bin/python -c "$(grep -E '^(from|import) ' "$TREE"/clients/python/README.md)
from importlib.metadata import version; print(version('gatehouse-client'))"`
	node = `sed -n '/^import /p' "$TREE"/clients/node/README.md >index.mjs && node index.mjs && npm ls`
	// java has the README's dependency and program.
	java = `mkdir -p src/main/java && sed -n '/^` + "```java/,/^```/p' " + `"$TREE"/clients/java/README.md | sed '/^` + "```" +
		`/d' >src/main/java/Example.java
	{
		echo '<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>writer</artifactId>
			<version>1</version><properties><maven.compiler.release>17</maven.compiler.release>
			<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
			<repositories><repository><id>release</id><url>'"$MAVEN"'</url></repository></repositories><dependencies>'
		sed -n '/^<dependency>/,/^<.dependency>/p' "$TREE"/clients/java/README.md
		echo '</dependencies><build><plugins><plugin><artifactId>maven-compiler-plugin</artifactId>
			<version>3.14.0</version></plugin><plugin><artifactId>maven-resources-plugin</artifactId>
			<version>3.3.1</version></plugin></plugins></build></project>'
	} >pom.xml
	mvn --batch-mode --quiet compile && ls target/classes`
	// repository gives Maven a local repository of its own, with what the user's has of others.
	repository = `cp -r "$CACHE" m2 && rm -rf m2/io/github/gatehouse
		export MAVEN_OPTS="-XX:TieredStopAtLevel=1 -Dmaven.repo.local=$PWD/m2"`
	// values is the values.yaml of docs/install/kubernetes.md.
	values = `sed -n '/^and a values.yaml:/,/^Then:/s/^    //p' "$TREE"/docs/install/kubernetes.md >values.yaml; test -s values.yaml`
)

var cases = []installation{
	{page: "docs/install/README.md", commands: []string{"go install "}, after: `"$(go env GOPATH)"/bin/gatehousectl --version`,
		want: "gatehousectl vVERSION\n"},
	{page: "clients/go/README.md", commands: []string{"go get "}, before: goProgram, after: checkProgram,
		want: "/clients/go vVERSION\n"},
	{page: "clients/go/README.md", commands: []string{"go mod edit -replace"}, before: goProgram, after: checkProgram,
		want: "=> "},
	{page: "examples/postgres/README.md", commands: []string{"cp -r ", "cd products && go mod tidy"},
		after: "go build -o products . && { ./products -h 2>&1 || true; }", want: "-database"},
	{page: "clients/python/README.md", commands: []string{"pip install gatehouse-client"}, before: venv, after: python,
		want: "VERSION\n"},
	{page: "clients/python/README.md", commands: []string{"pip install DIR/"}, before: venv, after: python,
		want: "VERSION\n"},
	{page: "clients/node/README.md", commands: []string{"npm install @gatehouse/client"}, after: node,
		want: "@gatehouse/client@VERSION\n"},
	{page: "clients/node/README.md", commands: []string{"(cd DIR/clients/node && npm ci", "npm install DIR/"}, after: node,
		want: "@gatehouse/client@VERSION "},
	{page: "clients/java/README.md", before: repository, after: java, want: "Example.class\n"},
	{page: "clients/java/README.md", commands: []string{"mvn -f DIR/"}, before: repository,
		after: `MAVEN=file:///nowhere; ` + java, want: "Example.class\n"},
	{page: "docs/install/README.md", commands: []string{"helm install edge oci://"}, before: values,
		want: "app.kubernetes.io/version: \"VERSION\""},
	{page: "docs/install/kubernetes.md", commands: []string{"helm install demo "}, inTree: true, want: "kind: Deployment"},
	{page: "docs/install/kubernetes.md", commands: []string{"helm upgrade --install edge "}, before: values, inTree: true,
		want: "rediss+sentinel://"},
	{page: "docs/agent.md", commands: []string{"helm upgrade --install agent "}, inTree: true, want: "kind: DaemonSet",
		before: `sed -n '/^## In Kubernetes/,/^Then/s/^    //p' "$TREE"/docs/agent.md >agent.yaml; test -s agent.yaml`},
	{page: "docs/install/istio.md", commands: []string{"helm install edge "}, before: values, inTree: true,
		want: "kind: EnvoyFilter"},
	{page: "docs/install/envoy-gateway.md", commands: []string{"helm install edge "}, before: values, inTree: true,
		want: "kind: EnvoyPatchPolicy"},
	{page: "charts/gatehouse/README.md", commands: []string{"helm install demo ", "helm install edge "}, before: values,
		inTree: true, want: "name: edge-gatehouse"},
	{page: "docs/migrate/ingress-nginx.md", commands: []string{"helm install edge "}, inTree: true,
		before: `cp docs/migrate/ingress-nginx/values.yaml . && sed 's/#trial //' docs/migrate/ingress-nginx/rules.yaml >trial.yaml`,
		want:   "kind: Deployment"},
}

// find returns the commands of the page, in the order of the installation.
func (i installation) find(t *testing.T, all []command) []command {
	t.Helper()
	var found []command
	for _, prefix := range i.commands {
		n := len(found)
		for _, c := range all {
			if c.page == i.page && strings.HasPrefix(c.text, prefix) {
				found = append(found, c)
			}
		}
		if len(found) != n+1 {
			t.Errorf("%s: %d commands begin with %q, want 1", i.page, len(found)-n, prefix)
		}
	}
	return found
}

// TestInstall runs each installation.
func TestInstall(t *testing.T) {
	t.Parallel()
	all := readCommands(t)
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.page+": "+strings.Join(c.commands, ", "), "/", "_"), func(t *testing.T) {
			t.Parallel()
			r := *from
			work, err := os.MkdirTemp(r.work, "case")
			require.NoError(t, err)
			tree := filepath.Join(work, "tree") // commands change it
			if _, err := r.run(t.Context(), ".", "git", "clone", "--quiet", "--shared", r.tree, tree); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(work, "empty")
			require.NoError(t, os.Mkdir(dir, 0o755))
			if c.inTree {
				dir = tree
			}
			r.env = append(r.env, "TREE="+tree, "MAVEN="+r.maven, "CACHE="+os.Getenv("HOME")+"/.m2/repository",
				"VIRTUAL_ENV="+filepath.Join(dir, "venv"))
			lines := []string{c.before}
			for _, command := range c.find(t, all) {
				t.Log(command.text)
				lines = append(lines, strings.ReplaceAll(command.text, "DIR/", tree+"/"))
			}
			output, err := r.run(t.Context(), dir, "bash", "-euo", "pipefail", "-c", strings.Join(append(lines, c.after), "\n"))
			require.NoError(t, err)
			t.Log(lastLine(output))
			if want := strings.ReplaceAll(c.want, "VERSION", r.version); !strings.Contains(output, want) {
				t.Errorf("got %s\nwant %q in it", output, want)
			}
		})
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
