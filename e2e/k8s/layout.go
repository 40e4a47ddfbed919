//go:build linux

// Package k8s runs one node of a real Kubernetes on this machine, while a command runs: etcd, API server, controllers,
// scheduler, kubelet with containerd, kube-proxy, DNS.
//
// All of it, and the command, run in their own namespaces of processes, mounts and network. When the command ends, the
// kernel ends every process, mount, address and firewall rule with them: there is no teardown to forget, and no
// conflict with the ports of another cluster.
package k8s

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"embed"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

const (
	// Gateway is the machine's address for pods. The address exists only inside the namespaces.
	Gateway = "10.244.0.1"

	podNet     = "10.244.0.0/24"
	serviceNet = "10.96.0.0/16"
	bridge     = "pods0"
	nodeName   = "localhost"
	token      = "admin" // the API server can be reached only inside the namespaces
	pauseImage = "localhost/pause:dev"
	redisImage = "localhost/redis:dev"
	cniPlugins = "/usr/lib/cni" // as on Debian
)

//go:embed files
var files embed.FS

// layout has the paths of the node's files, all below Dir.
type layout struct {
	Dir string
}

// The values in the templates of the files.
func (layout) PauseImage() string   { return pauseImage }
func (layout) Bridge() string       { return bridge }
func (layout) DNS() string          { return Gateway }
func (layout) Gateway() string      { return Gateway }
func (layout) Zone() string         { return zone }
func (layout) PodNet() string       { return podNet }
func (layout) Token() string        { return token }
func (layout) CNI() string          { return cniPlugins }
func (l layout) Containerd() string { return l.path("containerd.sock") }

func (l layout) kubeconfig() string         { return l.path("kubeconfig.yaml") }
func (l layout) path(name ...string) string { return filepath.Join(l.Dir, filepath.Join(name...)) }

// writeFiles fills Dir.
func (l layout) writeFiles() error {
	for _, dir := range []string{"cni", "certs", "kubelet", "log", "names"} {
		if err := os.MkdirAll(l.path(dir), 0o755); err != nil {
			return err
		}
	}
	for name, path := range map[string]string{
		"containerd.toml": l.path("containerd.toml"), "kubelet.yaml": l.path("kubelet.yaml"),
		"kubeconfig.yaml": l.kubeconfig(), "bridge.conflist": l.path("cni", "10-bridge.conflist"),
	} {
		text, err := template.ParseFS(files, "files/"+name)
		if err != nil {
			return err
		}
		var buf bytes.Buffer
		if err := text.Execute(&buf, l); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(path, buf.Bytes(), 0o600); err != nil {
			return err
		}
	}
	user := token + ",admin,admin,system:masters\n"
	if err := os.WriteFile(l.path("tokens.csv"), []byte(user), 0o600); err != nil {
		return err
	}
	return l.writeServiceAccountKey()
}

// writeServiceAccountKey writes the key with which the API server and the controllers sign tokens.
func (l layout) writeServiceAccountKey() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return os.WriteFile(l.path("certs", "service-account.pem"), private, 0o600)
}
