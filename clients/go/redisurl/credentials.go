package redisurl

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

// maxPassword bounds a password file in bytes.
const maxPassword = 4096

func (s Settings) checkCredentials(t *target) (errs []*Error) {
	if s.PasswordFile != "" && t.password != "" {
		errs = append(errs, refuse("password_file", "the url has a password too: give one of them"))
	}
	switch {
	case s.Username != "" && t.username != "":
		errs = append(errs, refuse("username", "the url has a user too: give one of them"))
	case s.Username != "" && s.PasswordFile == "" && t.password == "":
		errs = append(errs, refuse("username", "%q has no password: give its file", s.Username))
	case t.username != "" && s.PasswordFile == "" && t.password == "":
		errs = append(errs, refuse("url", "password: the user has none: add it, or give its file"))
	}
	if s.PasswordFile != "" {
		if _, err := readPassword("password_file", s.PasswordFile); err != nil {
			errs = append(errs, err)
		}
	}
	for _, given := range []struct{ setting, value string }{
		{"sentinel_username", s.SentinelUsername}, {"sentinel_password_file", s.SentinelPasswordFile},
	} {
		if given.value != "" && t.kind != sentinel {
			errs = append(errs, refuse(given.setting, "the url names no sentinels: it has no use"))
		}
	}
	switch {
	case t.kind != sentinel:
	case s.SentinelPasswordFile != "":
		if _, err := readPassword("sentinel_password_file", s.SentinelPasswordFile); err != nil {
			errs = append(errs, err)
		}
	case s.SentinelUsername != "":
		errs = append(errs, refuse("sentinel_username", "%q has no password: give its file", s.SentinelUsername))
	}
	return errs
}

// setCredentials sets the logins at servers and sentinels.
func (s Settings) setCredentials(o *redis.UniversalOptions, t *target) error {
	if s.SentinelPasswordFile != "" {
		password, err := readPassword("sentinel_password_file", s.SentinelPasswordFile)
		if err != nil {
			return err
		}
		o.SentinelUsername, o.SentinelPassword = s.SentinelUsername, password
	}
	username := t.username + s.Username // s.Username or t.username is empty
	o.Username, o.Password = username, t.password
	if s.PasswordFile != "" {
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := readPassword("password_file", s.PasswordFile)
			if err != nil {
				return "", "", err
			}
			return username, password, nil
		}
	}
	return nil
}

// readPassword returns the file's content without the last line end.
func readPassword(setting, name string) (string, *Error) {
	file, err := os.Open(name)
	if err != nil {
		return "", refuse(setting, "%v", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxPassword+1))
	if err != nil {
		return "", refuse(setting, "%v", err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	switch {
	case len(content) > maxPassword:
		return "", refuse(setting, "%s: over %d bytes, too large for a password", name, maxPassword)
	case password == "":
		return "", refuse(setting, "%s: is empty, want a password", name)
	case strings.ContainsAny(password, "\r\n"):
		return "", refuse(setting, "%s: has more than one line, want a password", name)
	}
	return password, nil
}
