//go:build linux

package peers

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
)

//go:embed nginx.conf.tmpl
var nginxConf string

var nginxTemplate = template.Must(template.New("nginx.conf").Parse(nginxConf))

// StartNginx runs nginx as a cache in front of origin. nginx checks credentials by auth_request to auth, and caches
// verdicts.
func StartNginx(ctx context.Context, dir string, workers int, origin, auth string) (*Running, error) {
	path, err := findProgram("nginx")
	if err != nil {
		return nil, err
	}
	address, err := freeport.FindAddress()
	if err != nil {
		return nil, err
	}
	var conf bytes.Buffer
	err = nginxTemplate.Execute(&conf, map[string]any{
		"Dir": dir, "Address": address, "Workers": workers, "Origin": origin, "Auth": auth, "Root": os.Geteuid() == 0,
	})
	if err != nil {
		return nil, fmt.Errorf("nginx.conf: %w", err)
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, conf.Bytes(), 0o600); err != nil {
		return nil, err
	}
	return startServer(ctx, dir, address, "nginx", path, "-c", file, "-p", dir,
		"-e", filepath.Join(dir, "nginx-error.log"))
}

// StartVarnish runs varnishd as a cache in front of origin.
func StartVarnish(ctx context.Context, dir, origin string) (*Running, error) {
	path, err := findProgram("varnishd")
	if err != nil {
		return nil, err
	}
	address, err := freeport.FindAddress()
	if err != nil {
		return nil, err
	}
	// Varnish's own gzip support would store compressed bodies and decompress for each client.
	return startServer(ctx, dir, address, "varnish", path, "-F", "-j", "none", "-a", address, "-b", origin,
		"-n", filepath.Join(dir, "varnish"), "-s", "malloc,64m", "-p", "http_gzip_support=off")
}
