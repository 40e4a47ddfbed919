package events

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestHistory(t *testing.T) {
	const master = "# Server\r\nrun_id:abc\r\ntcp_port:7000\r\n# Replication\r\nrole:master\r\nmaster_replid:def\r\n"
	if got, err := history(master, ""); got != "abc/def" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := history("", "x"); got != "" || err != nil {
		t.Errorf("nothing: got %q, %v", got, err)
	}
	replica := strings.Replace(master, "role:master", "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:7001", 1)
	for server, named := range map[string]string{"": "at port 7000", "10.0.0.2:7000": "10.0.0.2:7000"} {
		_, err := history(replica, server)
		if !refusal(err) {
			t.Fatalf("a replica: %v", err)
		}
		for _, want := range []string{named, "role slave, of 10.0.0.1:7001", "redis+sentinel://"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: want %q", err, want)
			}
		}
	}
}

type answer string

func (a answer) Error() string { return string(a) }
func (a answer) RedisError()   {}

func TestInfoWithheld(t *testing.T) {
	for _, test := range []struct {
		name        string
		info, epoch error
		want        bool
	}{
		{"answered", nil, nil, false},
		{"empty", nil, redis.Nil, false},
		{"no permission", answer("NOPERM this user"), answer("EXECABORT Transaction discarded"), true},
		{"no such section", answer("section (server) is not supported"), redis.Nil, true},
		{"loading", answer("EXECABORT Transaction discarded"), answer("LOADING Redis is loading"), false},
		{"moved", answer("EXECABORT Transaction discarded"), answer("MOVED 1 b:1"), false},
		{"cut", errors.New("EOF"), errors.New("EOF"), false},
	} {
		if got := infoWithheld(test.info, test.epoch); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
