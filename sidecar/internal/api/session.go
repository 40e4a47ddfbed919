package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/token"
)

// Sessions issues tokens, and publishes the keys that validate tokens.
type Sessions interface {
	Issue(device, record, permissions string, notAfter time.Time) (token.Token, error)
	Keys() ([]byte, error)
}

var errTokenForToken = errors.New("a token can't be exchanged for another one: want a device's secret")

// handleSession issues a token for a credential. It verifies the credential itself, because a verdict at the edge may
// be a moment behind. The token identifies the record that authenticated the device.
func (s *Server) handleSession(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxVerify))
	if err != nil {
		s.refuseMalformed(w, "session", err)
		return
	}
	request, err := wire.ParseVerifyRequest(body)
	if err == nil && request.Session != "" {
		err = errTokenForToken
	}
	if err != nil {
		s.refuseMalformed(w, "session", err)
		return
	}
	result := s.verifier.Verify(r.Context(), request.DeviceID, request.Secret, request.Source)
	response := wire.SessionResponse{Outcome: result.Outcome, RetryAfterS: ceilSeconds(result.RetryAfter),
		ThrottleMS: ceilMilliseconds(result.ThrottleFor)}
	if result.Outcome == wire.Away {
		response.Outcome = wire.Unavailable
	}
	if result.ByAuthority { // other sidecars could not judge the token's record
		response.Outcome = wire.Deny
	}
	call, got := "ok", "refused"
	switch response.Outcome {
	case wire.Allow:
		got = "issued"
		response.Body, err = s.issueToken(request.DeviceID, &result)
		if err != nil { // can't happen: the secret was validated
			s.log.Error("creating a token failed", "error", err)
			http.Error(w, "creating a token failed", http.StatusInternalServerError)
			return
		}
		// The record may have changed meanwhile.
		if !s.verifier.SessionValid(request.DeviceID, result.Session) {
			call, got = "unavailable", "unavailable"
			response = wire.SessionResponse{Outcome: wire.Unavailable, RetryAfterS: 1}
		}
	case wire.Deny:
		// As for verify.
		ctx, cancel := context.WithTimeout(r.Context(), awaitTimeout)
		defer cancel()
		_ = s.memory.AwaitVerdicts(ctx, request.DeviceID)
	default:
		call, got = "unavailable", "unavailable"
	}
	s.metrics.Sessions.WithLabelValues(got).Inc()
	s.recordDecision(r, "session", response.Outcome.String(), string(result.Reason))
	s.writeAnswer(w, "session", call, wire.AppendSessionResponse(nil, &response))
}

func (s *Server) issueToken(device string, r *credential.Result) ([]byte, error) {
	token, err := s.sessions.Issue(device, r.Session, r.Permissions, r.NotAfter)
	if err != nil {
		return nil, err
	}
	return json.Marshal(token)
}

// handleKeys serves the set of public keys, which the proxy fetches periodically.
func (s *Server) handleKeys(w http.ResponseWriter, _ *http.Request) {
	keys, err := s.sessions.Keys()
	if err != nil {
		s.log.Error("creating session keys failed", "error", err)
		http.Error(w, "creating session keys failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Cache-Control", "max-age=60")
	s.writeResponse(w, "jwks", "ok", "application/jwk-set+json", keys)
}
