package nginx_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/nginx"
	"github.com/gatehouse/gatehouse/wire"
)

// decision is everything that a decision consists of. Its headers, body and key have a character for each byte.
type decision struct {
	Rule        int    `json:"rule"`
	Ambiguous   bool   `json:"ambiguous,omitempty"`
	Action      string `json:"action"`
	Status      int    `json:"status,omitempty"`
	Headers     string `json:"headers,omitempty"` // lines
	Body        string `json:"body,omitempty"`
	Key         string `json:"key,omitempty"`
	Digest      string `json:"digest,omitempty"` // hex
	Refresh     bool   `json:"refresh,omitempty"`
	New         bool   `json:"new,omitempty"`
	Guess       string `json:"guess,omitempty"`
	CacheStatus string `json:"cache_status,omitempty"`
	Device      string `json:"device,omitempty"`
	Names       string `json:"names,omitempty"`
	Vary        string `json:"vary,omitempty"`
	ReloadState bool   `json:"reload_state,omitempty"`
	Auth        string `json:"auth,omitempty"`
	Reason      string `json:"reason,omitempty"` // of a reply that isn't from the cache
	Cache       string `json:"cache,omitempty"`
}

// worldCase is one configuration, state and memory, with requests. Bytes are base64 in JSON.
type worldCase struct {
	Rules    string        `json:"rules"` // YAML
	State    []byte        `json:"state,omitempty"`
	ReadMS   int64         `json:"read_ms"`
	Records  []worldRecord `json:"records,omitempty"`
	Requests []worldAsk    `json:"requests,omitempty"`
}

type worldRecord struct {
	Region string `json:"region"`
	Index  uint32 `json:"index"`
	Record []byte `json:"record"`
}

type worldAsk struct {
	NowMS   int64        `json:"now_ms"`
	Method  string       `json:"method"`
	Target  string       `json:"target"`
	Headers [][2]string  `json:"headers,omitempty"`
	Token   *worldToken  `json:"token,omitempty"`
	Answers worldAnswers `json:"answers,omitzero"`
}

type worldToken struct {
	ID      string `json:"id"`
	Session string `json:"session"`
}

// Claim implements policy.Claims; a nil token has none.
func (k *worldToken) Claim(_, name string) string {
	switch {
	case k == nil:
		return ""
	case name == "sub":
		return k.ID
	}
	return k.Session
}

type worldAnswers struct {
	Verify      []byte `json:"verify,omitempty"`
	Fetch       []byte `json:"fetch,omitempty"`
	Session     []byte `json:"session,omitempty"`
	FailedFetch bool   `json:"failed_fetch,omitempty"`
	Unreachable bool   `json:"unreachable,omitempty"`
	Suspect     bool   `json:"suspect,omitempty"`
	ThrottledS  uint16 `json:"throttled_s,omitempty"`
}

// parsed returns the answers as the policy has them.
func (a *worldAnswers) parsed(t *testing.T) policy.Answers {
	t.Helper()
	answers := policy.Answers{Unreachable: a.Unreachable, Suspect: a.Suspect, ThrottledS: a.ThrottledS}
	if a.Verify != nil {
		v, err := wire.ParseVerifyResponse(a.Verify)
		answers.Verify = &v
		mustBeNil(t, err)
	}
	if a.Fetch != nil {
		f, err := wire.ParseFetchResponse(a.Fetch)
		answers.Fetch = &f
		mustBeNil(t, err)
	} else if a.FailedFetch {
		answers.Fetch = &wire.FetchResponse{}
	}
	if a.Session != nil {
		s, err := wire.ParseSessionResponse(a.Session)
		answers.Session = &s
		mustBeNil(t, err)
	}
	return answers
}

// worldMemory implements policy.Memory.
type worldMemory map[worldPlace][]byte

type worldPlace struct {
	region string
	index  uint32
}

func (m worldMemory) Record(region wire.Region, index uint32) []byte {
	return m[worldPlace{region.String(), index}]
}

func (m worldMemory) Body(epoch uint64, v wire.Variant) *policy.Body {
	body, err := wire.FindBody(m.Record(wire.RegionBodies, v.Slot), epoch, v)
	if err != nil {
		return nil
	}
	return &policy.Body{Bytes: body}
}

func (m worldMemory) Guard() uint64 { return 256 }

// decideInGo returns the decisions of package policy.
func decideInGo(t *testing.T, c *worldCase) (all []decision) {
	t.Helper()
	e, memory := policy.NewEngine(parsed(t, c.Rules)), worldMemory{}
	if c.State != nil {
		state, err := wire.ParseState(c.State)
		mustBeNil(t, err)
		e.SetState(c.ReadMS, state)
	}
	for _, r := range c.Records {
		memory[worldPlace{r.Region, r.Index}] = r.Record
	}
	for i := range c.Requests {
		all = append(all, decideOne(t, e, memory, &c.Requests[i]))
	}
	return all
}

func decideOne(t *testing.T, e *policy.Engine, memory worldMemory, q *worldAsk) decision {
	t.Helper()
	pairs := append([][2]string{{":method", q.Method}, {":path", q.Target}}, q.Headers...)
	fields, ok := headermap.ParseFields(headermap.Append(nil, pairs))
	if !ok {
		t.Fatal("bad header map")
	}
	r := e.Read(fields, q.Token)
	out := decision{Rule: -1, Action: "pass"}
	at := e.Locate(fields)
	if at.Passes || !e.Govern(&r, &at) {
		return out
	}
	out.Rule, out.Ambiguous = r.Rule()
	answers := q.Answers.parsed(t)
	var d policy.Decision
	e.Decide(&d, q.NowMS, &r, memory, &answers)
	// The decision's texts may lie where the next one is made.
	out.Action = [...]string{policy.Pass: "pass", policy.Reply: "reply", policy.Verify: "verify", policy.Fetch: "fetch", policy.Exchange: "exchange"}[d.Action]
	out.Status, out.Refresh, out.New, out.CacheStatus, out.ReloadState = d.Status, d.Refresh, d.New, strings.Clone(d.CacheStatus), d.ReloadState
	out.Guess = [...]string{policy.NoGuess: "", policy.Right: "right", policy.Wrong: "wrong"}[d.Guess]
	if d.Action == policy.Reply && d.Cache == policy.None {
		out.Reason = d.Details()
	}
	out.Auth, out.Cache = d.Auth.String(), d.Cache.String()
	out.Body, out.Key = latin1(string(d.Body)), latin1(d.Key)
	if out.Action == "verify" || out.Action == "exchange" || d.Refresh {
		out.Digest = hex.EncodeToString(d.Digest[:])
	}
	if d.Action == policy.Pass && d.Device != "" {
		out.Device, out.Names, out.Vary = strings.Clone(d.Device), strings.Clone(e.Names(d.Permissions)), strings.Clone(e.Vary(&r))
	}
	headers, _ := headermap.Parse(d.Headers)
	var lines []string
	for _, h := range headers {
		lines = append(lines, h[0]+": "+h[1])
	}
	out.Headers = latin1(strings.Join(lines, "\n"))
	return out
}

// latin1 returns a text with a character for each byte of s, because JSON has only characters.
func latin1(s string) string {
	text := make([]rune, len(s))
	for i := range len(s) {
		text[i] = rune(s[i])
	}
	return string(text)
}

func mustBeNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// parsed returns the configuration of rules in YAML.
func parsed(t *testing.T, text string) *policy.Config {
	t.Helper()
	var tree any
	mustBeNil(t, yaml.Unmarshal([]byte(text), &tree))
	config, err := policy.Parse(tree)
	mustBeNil(t, err)
	return config
}

// decideInLua returns the plugin's decisions.
func decideInLua(t *testing.T, c *worldCase) []decision {
	t.Helper()
	file, _, err := nginx.Render([]byte(c.Rules))
	if err != nil {
		t.Fatalf("%s: %v", c.Rules, err)
	}
	var result [1][]decision
	call(t, &result, "decide_cases", "decide", c, string(file))
	return result[0]
}

var huge = regexp.MustCompile(`=[0-9]{12,}`)

// compareDecisions fails unless the decisions of a case are those that are wanted.
func compareDecisions(t *testing.T, c *worldCase, who string, got, want []decision) {
	t.Helper()
	// Over 2^53 ms Lua's numbers aren't exact.
	rounded := func(d decision) decision {
		d.Headers = huge.ReplaceAllString(d.Headers, "")
		return d
	}
	if len(got) != len(want) {
		t.Fatalf("%s: got %d decisions, want %d", who, len(got), len(want))
	}
	for i := range got {
		if a, b := rounded(got[i]), rounded(want[i]); a != b {
			q, _ := json.Marshal(c.Requests[i])
			t.Fatalf("%s\nrequest %s\n%s: got %+v\nwant %+v", c.Rules, q, who, a, b)
		}
	}
}

// kinds counts kinds of decisions.
type kinds map[string]int

func (k kinds) add(all []decision) {
	for _, d := range all {
		k[fmt.Sprint(d.Action, " ", d.Status, " ", d.Auth, " ", d.Cache, " ", d.CacheStatus)]++
	}
}

// TestDecide decides random requests in random worlds, and compares every field of the decision with Go's.
func TestDecide(t *testing.T) {
	total, r := caseCount(t, 10_000)
	w := &world{Rand: r}
	const asks = 50
	seen := kinds{}
	for n := 0; n < total; n += asks {
		c := w.next(t, asks)
		want := decideInGo(t, &c)
		compareDecisions(t, &c, "Lua", decideInLua(t, &c), want)
		seen.add(want)
	}
	if total >= 10_000 && len(seen) < 35 {
		t.Errorf("only %d kinds of decisions were made: %v", len(seen), seen)
	}
	t.Logf("%d kinds of decisions", len(seen))
}
