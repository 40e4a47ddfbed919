package token

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Bounds of a file with secrets.
const (
	minSecret  = 32 // bytes of a line: 256 bits, if random
	maxSecret  = 1024
	maxSecrets = 4 // lines: two are enough to change a secret without a gap
)

// ReadSecrets reads a file of secrets, one per line; the first secret signs. Errors contain no secret.
func ReadSecrets(name string) ([]string, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	const most = maxSecrets * (maxSecret + 2) // with line ends
	content, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, err
	}
	if len(content) > most {
		return nil, fmt.Errorf("%s: over %d bytes, at most %d lines of %d bytes are allowed", name,
			most, maxSecrets, maxSecret)
	}
	secrets := strings.Split(strings.TrimSuffix(strings.ReplaceAll(string(content), "\r\n", "\n"), "\n"), "\n")
	if len(secrets) > maxSecrets {
		return nil, fmt.Errorf("%s: %d lines, at most %d are allowed: remove secrets whose tokens have expired",
			name, len(secrets), maxSecrets)
	}
	for i, secret := range secrets {
		switch {
		case len(secret) < minSecret || len(secret) > maxSecret:
			return nil, fmt.Errorf("%s: line %d has %d bytes, want %d to %d: make one with openssl rand -hex 32",
				name, i+1, len(secret), minSecret, maxSecret)
		case slices.Contains(secrets[:i], secret):
			return nil, fmt.Errorf("%s: line %d is a duplicate", name, i+1)
		}
	}
	return secrets, nil
}
