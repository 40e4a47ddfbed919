package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/devicelog"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
)

// ErrQuestion is wrapped by errors of a malformed question.
var ErrQuestion = errors.New("malformed question")

const redisTimeout = 2 * time.Second

// Explain returns the present answer to a request. Explain decides with the edge's own policy and the memory that the
// edge has or will have in milliseconds, asks Redis for the records' versions, and never runs bcrypt. The explanation
// does not reveal whether a secret is right: nothing limits guesses here.
func (i *Inspector) Explain(ctx context.Context, q operatorapi.Question) (*operatorapi.Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	e := &operatorapi.Explanation{}
	if reasons := i.Ready(); len(reasons) > 0 {
		e.Warning = "This sidecar is not ready, so the edge may work with what another one pushed: " +
			strings.Join(reasons, "; ")
	}
	if q.URL != "" || q.Device == "" || len(q.Rules) > 0 {
		host, target, err := splitURL(q.URL)
		if err == nil {
			e.Key = objectkey.Canonical(target)
		}
		switch {
		case err != nil:
		case isKey(target):
			err = explainKey(e, q.Rules)
		case len(q.Rules) > 0:
			err = i.explainRequest(e, &q, host, target)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrQuestion, err)
		}
	}
	if e.Key != "" {
		o := i.describeObject(ctx, e.Key)
		if e.Rule == nil || !e.Rule.Cache || e.Rule.OriginHeaders {
			o.NotSent = nil
		}
		e.Object = &o
	}
	if id := q.Device; id != "" {
		d := i.describeDevice(ctx, id)
		e.Device = &d
		refineRefusal(&e.Answer, &d)
		if e.IfRight != nil {
			refineRefusal(e.IfRight, &d)
		}
	}
	return e, nil
}

// splitURL returns host, path and query of a URL.
func splitURL(text string) (host, target string, err error) {
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "@") {
		return "", text, nil // unchanged: the spelling counts
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "", "", fmt.Errorf("url %q: want http://host/path, or /path", text)
	}
	return u.Host, u.RequestURI(), nil
}

// isKey reports whether a target is the key of an object that only some requests for the path get.
func isKey(target string) bool {
	return target[0] == '@' || strings.HasPrefix(target, "//") || strings.Contains(target, "#")
}

// explainKey sets the answer for the key: whether the rules serve the key's object to any request.
func explainKey(e *operatorapi.Explanation, rules json.RawMessage) error {
	if _, err := contract.ParseMember(contract.ObjectMember(e.Key).String()); err != nil || len(rules) == 0 {
		return err
	}
	config, err := policy.ParseBytes(rules)
	if err != nil {
		return err
	}
	rule, why := config.ServedBy(e.Key)
	if rule < 0 {
		e.Answer = operatorapi.Answer{Action: "never", Text: "No request gets this object: " + why}
		return nil
	}
	e.Rule = describeRule(config, rule)
	e.Answer = operatorapi.Answer{Action: "serve", Text: "Requests that this rule governs get this object"}
	return nil
}

// view is a [policy.Memory].
type view struct{ *edgemem.View }

// Body implements [policy.Memory].
func (v view) Body(_ uint64, at wire.Variant) *policy.Body {
	return &policy.Body{Bytes: v.View.Body(at)}
}

// Guard implements [policy.Memory]: no answer is repeated.
func (view) Guard() uint64 { return 0 }

// claims are a valid token's claims by name, empty without a token.
type claims map[string]string

// Claim implements [policy.Claims].
func (c claims) Claim(_, name string) string { return c[name] }

// readToken returns the claims of the request's token, and removes the token from the headers as the proxy does.
func (i *Inspector) readToken(q *operatorapi.Question, c *policy.Config) (claims, error) {
	if c.SessionMetadata == "" || q.Device != "" {
		return nil, nil
	}
	for at, h := range q.Headers {
		text, found := strings.CutPrefix(h[1], "Bearer ")
		if found && strings.EqualFold(h[0], "authorization") && !strings.HasPrefix(text, apikey.Prefix) {
			device, record, err := i.Tokens.ReadToken(text)
			q.Headers = slices.Delete(slices.Clone(q.Headers), at, at+1)
			return claims{policy.SubjectClaim: device, policy.RecordClaim: record}, err
		}
	}
	return nil, nil
}

// explainRequest sets virtual host, rule, answers, key and the device of the credential.
func (i *Inspector) explainRequest(e *operatorapi.Explanation, q *operatorapi.Question, host, target string) error {
	config, err := policy.ParseBytes(q.Rules)
	if err != nil {
		return err
	}
	memory := view{i.Memory.View()}
	engine := policy.NewEngine(config)
	engine.SetState(time.Now().UnixMilli(), memory.State())
	token, refused := i.readToken(q, config)
	fields, ok := headermap.ParseFields(headermap.Append(nil, headersOf(q, &policy.Credentials{}, host, target)))
	if !ok {
		return errors.New("headers: too many")
	}
	at := engine.Locate(fields)
	request := at.Read(token)
	virtual, domain := request.VirtualHost()
	if e.Domain = domain; virtual != policy.NoVirtualHost {
		e.VirtualHost = config.VirtualHosts[virtual].Name
	}
	credentials := config.HostRules(virtual).Credentials
	fields, _ = headermap.ParseFields(headermap.Append(nil, headersOf(q, &credentials, host, target)))
	e.Key = ""
	at = engine.Locate(fields)
	request = at.Read(token)
	governed := !at.Passes && request.Governed()
	index, ambiguous := request.Rule()
	if governed && index >= 0 {
		e.Rule = describeRule(config, index)
	}
	switch {
	case refused != nil:
		e.Answer = operatorapi.Answer{Action: "reply", Status: 401,
			Text: "The proxy refuses the token, whatever the rule says: " + refused.Error()}
		return nil
	case !governed:
		e.Answer = operatorapi.Answer{Action: "pass", Text: "The request goes upstream without a check, and nothing " +
			"answers it from memory. " + describeUnmatched(config, virtual, target)}
		return nil
	}
	var d policy.Decision
	answers := policy.Answers{Suspect: true}
	assumed := q.Device != ""
	if assumed && i.Verifier.Describe(q.Device).Refusal == "" {
		answers.Verify = i.assumeVerdict(q.Device, memory) // otherwise the edge may refuse the device by itself
	}
	request.Decide(&d, time.Now().UnixMilli(), memory, &answers)
	e.Answer = describeDecision(&d)
	if index < 0 && !ambiguous { // the default decides
		e.Answer.Text += " " + describeUnmatched(config, virtual, target)
	}
	if id := d.Credential.ID; id != "" {
		q.Device = id
	}
	if d.Action == policy.Verify && i.Verifier.Describe(q.Device).Refusal == "no_authority" {
		e.Answer.Text += " Redis has no record of the device, so your authority decides."
	} else if d.Action == policy.Verify {
		answers.Verify = i.assumeVerdict(q.Device, memory)
		if session := d.Credential.Session; session != "" && !i.Verifier.SessionValid(q.Device, session) {
			answers.Verify.Outcome = wire.Deny
		}
		request.Decide(&d, time.Now().UnixMilli(), memory, &answers)
		if then := describeDecision(&d); assumed || token != nil {
			e.Answer = then
		} else {
			e.IfRight = &then
		}
	}
	if index >= 0 && config.Rules[index].Cache != nil {
		if e.Key = strings.Clone(d.Key); e.Key == "" { // otherwise the key of the answer's object
			e.Key = request.Key(q.Device)
		}
	}
	return nil
}

// describeUnmatched says among which rules none covers a request, and which of them comes nearest.
func describeUnmatched(c *policy.Config, virtual int, target string) string {
	text := "No rule covers it"
	if virtual != policy.NoVirtualHost {
		text = "No rule of the virtual host " + c.VirtualHosts[virtual].Name + " covers it"
	} else if len(c.VirtualHosts) > 0 {
		text = "No virtual host has its host, and no rule at the top level covers it"
	}
	path, _, _ := strings.Cut(target, "?")
	nearest, common := "", len("/") // in each path
	for n, rules := c.HostRules(virtual).First, c.HostRules(virtual); n < rules.End; n++ {
		rule, match := describeRule(c, n), c.Rules[n].Match
		match.Methods = nil
		if match.Covers(&policy.Match{Path: path}) {
			return fmt.Sprintf("%s: the rule %s has its path, but not its method: %s.", text, rule.Name, rule.Match)
		}
		same := 0
		for begin := match.Path + match.Prefix; same < min(len(begin), len(path)) && begin[same] == path[same]; {
			same++
		}
		if same > common {
			nearest, common = fmt.Sprintf(": the nearest rule is %s: %s", rule.Name, rule.Match), same
		}
	}
	return text + nearest + "."
}

// headersOf returns the request's header map, with the device's credential. A Host header replaces the URL's host.
func headersOf(q *operatorapi.Question, c *policy.Credentials, host, target string) [][2]string {
	method := q.Method
	if method == "" {
		method = "GET"
	}
	all := [][2]string{{":method", method}, {":path", target}}
	if host != "" && !slices.ContainsFunc(q.Headers, func(h [2]string) bool { return strings.EqualFold(h[0], "host") }) {
		all = append(all, [2]string{":authority", host})
	}
	credentials := map[string]bool{c.IDHeader: true, c.SecretHeader: true, c.APIKeyHeader: true, "authorization": true}
	for _, h := range q.Headers {
		name := strings.ToLower(h[0])
		if q.Device == "" || !credentials[name] {
			all = append(all, [2]string{name, h[1]})
		}
	}
	switch {
	case q.Device == "":
	case c.Basic:
		all = append(all, [2]string{"authorization", "Basic " + basicCredential(q.Device)})
	case c.IDHeader != "":
		all = append(all, [2]string{c.IDHeader, q.Device}, [2]string{c.SecretHeader, placeholder})
	case c.APIKeyHeader != "":
		all = append(all, [2]string{c.APIKeyHeader, placeholderKey(q.Device)})
	case c.Bearer:
		all = append(all, [2]string{"authorization", "Bearer " + placeholderKey(q.Device)})
	}
	return all
}

// assumeVerdict returns the sidecar's answer for a device with its right secret.
func (i *Inspector) assumeVerdict(id string, memory view) *wire.VerifyResponse {
	v := &wire.VerifyResponse{Outcome: wire.Allow, Epoch: memory.State().Epoch}
	d := i.Verifier.Describe(id)
	switch {
	case d.Refusal == "":
		v.Permissions = d.Permissions
	case d.Refusal.NotYet():
		v.Outcome, v.RetryAfterS = wire.Unavailable, 1
	default:
		v.Outcome = wire.Deny
	}
	return v
}

func describeRule(c *policy.Config, index int) *operatorapi.Rule {
	r := &c.Rules[index]
	text := "prefix " + r.Match.Prefix
	if r.Match.Prefix == "" {
		text = "path " + r.Match.Path
	}
	if r.Match.Methods != nil {
		text += ", methods " + strings.Join(r.Match.Methods, " ")
	}
	rule := &operatorapi.Rule{Name: r.Name, Index: index, Match: text, Auth: r.Auth != nil, Cache: r.Cache != nil,
		Session: r.IssueSession}
	if r.Auth != nil {
		rule.Permissions, rule.Trial = r.Auth.Permissions, r.Auth.Trial
	}
	rule.OriginHeaders = r.Cache != nil && r.Cache.OriginHeaders
	return rule
}

// replies explains each reason of the edge's own answers.
var replies = policy.ExplainReasons()

func describeDecision(d *policy.Decision) operatorapi.Answer {
	a := describeAction(d)
	if d.WouldBeRefused() {
		if a.Reason == "" {
			a.Reason = d.Reason.WouldDeny()
		}
		status, reason := d.Enforced()
		a.Enforced = &operatorapi.Answer{Action: "reply", Status: status, Reason: reason, Text: replies[reason]}
	}
	return a
}

func describeAction(d *policy.Decision) operatorapi.Answer {
	switch d.Action {
	case policy.Reply:
		return operatorapi.Answer{Action: "reply", Status: d.Status, Reason: d.Details(), Text: replies[d.Details()]}
	case policy.Verify:
		return operatorapi.Answer{Action: "verify", Text: "Unless the edge has verified this credential lately, it asks " +
			"the sidecar. Nothing here tells whether the secret is right."}
	case policy.Exchange:
		return operatorapi.Answer{Action: "exchange", Text: "The edge asks the sidecar for a token."}
	case policy.Fetch:
		return operatorapi.Answer{Action: "fetch", Text: "The edge lacks the object and asks the sidecar, which reads " +
			"Redis; without an object there, the request goes upstream."}
	}
	a := operatorapi.Answer{Action: "pass", CacheStatus: d.CacheStatus, Text: "The request goes upstream" +
		explainMiss(d.CacheStatus) + "."}
	if d.WouldHit != "" {
		a.Text += " The cache would answer it, but its rule has serve: false."
	}
	return a
}

// refineRefusal replaces the text of a refusal by the reason in the device's record: revoked, disabled, deleted,
// expired, or malformed.
func refineRefusal(a *operatorapi.Answer, d *operatorapi.Device) {
	if a.Enforced != nil {
		refineRefusal(a.Enforced, d)
	}
	if a.Reason != "gatehouse_denied_unknown_device" && a.Reason != "gatehouse_denied_credential" {
		return
	}
	when := ""
	if ms := d.Redis.PublishedMS; ms != 0 {
		when = " at " + time.UnixMilli(ms).UTC().Format(time.RFC3339)
	}
	switch d.Sidecar.Refusal { // see package credential
	case "revoked":
		a.Text = "The device was revoked" + when + "."
	case "disabled":
		a.Text = "The device was disabled" + when + "."
	case "deleted":
		a.Text = "The device was deleted" + when + "."
	case "expired":
		a.Text = "The device's access ended at " + d.Sidecar.Expires.UTC().Format(time.RFC3339) + "."
	case "refused_record":
		a.Text = "The device's record is malformed or can't be used."
	}
}

// explainMiss says why a request under a cache rule goes upstream, by its Cache-Status.
func explainMiss(status string) string {
	switch {
	case status == "":
		return ""
	case strings.Contains(status, "detail="):
		_, detail, _ := strings.Cut(status, "detail=")
		return ": " + strings.ReplaceAll(detail, "-", " ")
	case strings.Contains(status, "uri-miss"):
		return ": the edge lacks the object"
	case strings.Contains(status, "fwd=method"):
		return ": its method isn't cached"
	}
	return ": it can't be answered from a cache"
}

// describeObject describes an object in Redis, the sidecar and the edge.
func (i *Inspector) describeObject(ctx context.Context, key string) operatorapi.Object {
	edge := i.Memory.DescribeObject(key)
	o := operatorapi.Object{
		Sidecar: operatorapi.ObjectAtSidecar(i.Objects.Describe(key)),
		Edge:    operatorapi.ObjectAtEdge{Version: edge.Version, PublishedMS: edge.PublishedMS, Pending: edge.Pending},
		NotSent: originHeaders(edge.Headers),
	}
	values, err := i.Redis.HMGet(ctx, i.Keyspace.KeysOf(key).ObjectKey(key), contract.HeadFields()...).Result()
	if err != nil {
		o.Redis.Error = err.Error()
		return o
	}
	fields := contract.HeadOf(values)
	if len(fields) == 0 {
		return o
	}
	head, err := contract.ParseObjectHead(fields)
	if err != nil {
		o.Redis.Error = err.Error()
		return o
	}
	o.Redis = operatorapi.Version{Version: head.Version, PublishedMS: head.PublishedMS, TTLMS: head.TTLMS, ETag: head.ETag,
		Deleted: head.Deleted}
	if o.Edge.Version == 0 {
		o.NotSent = originHeaders(head.Headers)
	}
	return o
}

// originHeaders returns the names of the headers that act on the whole origin.
func originHeaders(all contract.Headers) (names []string) {
	for _, h := range all.List() {
		if limits.OriginHeader(h.Name) && !slices.Contains(names, h.Name) {
			names = append(names, h.Name)
		}
	}
	return names
}

// describeDevice describes a device in Redis, the sidecar and the edge.
func (i *Inspector) describeDevice(ctx context.Context, id string) operatorapi.Device {
	known := i.Verifier.Describe(id)
	d := operatorapi.Device{
		ID: id, Sidecar: describeDevice(&known),
		Permissions: strings.FieldsFunc(known.Permissions, func(r rune) bool { return r == ',' }),
		Edge:        operatorapi.DeviceAtEdge(i.Memory.DescribeDevice(id)),
	}
	for _, h := range i.listHolds() {
		if h.Device == id || h.Device == "" && h.WaitS > 0 {
			d.Held = append(d.Held, h)
		}
	}
	pipe := i.Redis.Pipeline() // catch-ups have other connections for themselves
	fields := pipe.HGetAll(ctx, i.Devices.KeysOf(id).CredentialKey(id))
	seen := pipe.ZMScore(ctx, i.Devices.KeysOf(id).SeenKey(), id)
	_, _ = pipe.Exec(ctx) // the replies have the errors
	if scores := seen.Val(); len(scores) == 1 && scores[0] > 0 {
		at := time.UnixMilli(int64(scores[0])).UTC()
		d.LastSeen = &at
	}
	d.Failed, _ = (&devicelog.Log{Client: i.Redis, Keyspace: i.Devices}).FailedAttempts(ctx, id)
	if err := fields.Err(); err != nil {
		d.Redis.Error = err.Error()
		return d
	}
	if len(fields.Val()) == 0 {
		return d
	}
	c, err := contract.ParseCredential(fields.Val())
	if err != nil {
		d.Redis.Error = err.Error()
		return d
	}
	d.Redis = operatorapi.Version{Version: c.Version, PublishedMS: c.PublishedMS, Deleted: c.Deleted, Disabled: c.Disabled,
		Revoked: c.Revoked}
	return d
}
