package authority

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/gatehouse/gatehouse/verify/credential"
)

// checkMethod is Check of Envoy's external authorization, envoy/service/auth/v3/external_auth.proto. This file reads
// and writes the few fields of its messages: grpc-go and go-control-plane would make the program 17 % larger.
const checkMethod = "/envoy.service.auth.v3.Authorization/Check"

// metadataName is the field of an answer's dynamic metadata that has the fields of an answer by HTTP.
const metadataName = "gatehouse"

// grpcProtocol is the protocol of Envoy's external authorization, by gRPC.
var grpcProtocol = protocol{
	header: http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}},
	encode: checkRequest,
	decode: checkAnswer, statuses: []int{http.StatusOK},
}

// checkRequest returns the call's body: a request with the headers of a device, as in envoy.yaml.
func checkRequest(target *url.URL, id, secret string) ([]byte, error) {
	headers := [][2]string{{"x-device-id", id}, {"x-device-token", secret}}
	if !strings.Contains(id, ":") { // RFC 7617, section 2
		basic := base64.StdEncoding.EncodeToString([]byte(id + ":" + secret))
		headers = append(headers, [2]string{"authorization", "Basic " + basic})
	}
	var asked []byte // AttributeContext.HttpRequest
	asked = appendText(asked, 2, http.MethodGet)
	for _, header := range headers {
		asked = appendText(asked, 3, string(appendText(appendText(nil, 1, header[0]), 2, header[1])))
	}
	asked = appendText(appendText(asked, 4, "/"), 5, target.Host)
	request := appendText(nil, 2, string(asked)) // AttributeContext.Request
	attributes := appendText(nil, 4, string(request))
	message := appendText(nil, 1, string(attributes))
	frame := make([]byte, 5, 5+len(message)) // not compressed, length: gRPC over HTTP/2, Length-Prefixed-Message
	binary.BigEndian.PutUint32(frame[1:], uint32(len(message)))
	return append(frame, message...), nil
}

func appendText(to []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), text)
}

// Codes of gRPC, google/rpc/code.proto.
const (
	codeOK                = 0
	codePermissionDenied  = 7
	codeResourceExhausted = 8
	codeUnauthenticated   = 16
)

// unfitCodes say that the call doesn't fit the service, or that the service has no policy for the call: invalid
// argument, not found, already exists, failed precondition, out of range, unimplemented.
var unfitCodes = []uint64{3, 5, 6, 9, 11, 12}

// codeError returns the error of a code that neither allows nor denies.
func codeError(code uint64, where string) error {
	switch {
	case code == codeResourceExhausted:
		return errThrottled
	case slices.Contains(unfitCodes, code):
		return malformed{fmt.Errorf("%s %d of gRPC", where, code)}
	}
	return fmt.Errorf("%s %d of gRPC", where, code)
}

// checkAnswer returns the answer of a call. The trailers have been read.
func checkAnswer(response *http.Response, body []byte) (credential.Answer, error) {
	kind, suffixed := strings.CutPrefix(response.Header.Get("Content-Type"), "application/grpc")
	stated := response.Trailer.Values("Grpc-Status")
	if len(body) == 0 || len(stated) > 0 {
		// An answer without a message may have its status in the header.
		stated = append(stated, response.Header.Values("Grpc-Status")...)
	}
	switch code, ok := parseCode(strings.Join(stated, ",")); {
	case !ok || !suffixed || kind != "" && kind[0] != '+' && kind[0] != ';':
		return credential.Answer{}, malformed{errors.New("no answer of gRPC")}
	case code != codeOK: // including: the sidecar has no permission
		return credential.Answer{}, codeError(code, "status")
	}
	if len(body) > maxAnswer {
		return credential.Answer{}, malformed{fmt.Errorf("over %d bytes", maxAnswer)}
	}
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:5])) != len(body)-5 {
		return credential.Answer{}, malformed{errors.New("want one message of gRPC, not compressed")}
	}
	return ParseCheck(body[5:])
}

func parseCode(text string) (code uint64, ok bool) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' || len(text) > 3 {
			return 0, false
		}
		code = code*10 + uint64(c-'0')
	}
	return code, text != ""
}

// ParseCheck reads a CheckResponse. The error doesn't quote the message.
func ParseCheck(message []byte) (credential.Answer, error) {
	var code, denied uint64 // google.rpc.Code; the status of HTTP for a denied client
	var stated, allows, denies, fails bool
	var metadata []byte
	err := visitFields(message, func(field protowire.Number, kind protowire.Type, _ uint64, inner []byte) error {
		if field <= 5 && kind != protowire.BytesType {
			return errWrongType
		}
		switch field {
		case 1: // status
			stated = true
			return readInteger(inner, 1, &code)
		case 2: // denied_response
			denies = true
			return visitFields(inner, func(field protowire.Number, _ protowire.Type, _ uint64, status []byte) error {
				if field == 1 {
					return readInteger(status, 1, &denied)
				}
				return nil
			})
		case 3: // ok_response
			allows = true
		case 4: // dynamic_metadata
			metadata = append(metadata, inner...) // messages are merged
		case 5: // error_response
			fails = true
		}
		return nil
	})
	switch {
	case err != nil:
		return credential.Answer{}, malformed{errors.New("want a CheckResponse of envoy.service.auth.v3")}
	case fails, denied/100 == 5:
		return credential.Answer{}, fmt.Errorf("an error, status %d", denied)
	case denied == http.StatusTooManyRequests:
		return credential.Answer{}, errThrottled
	case code == codePermissionDenied || code == codeUnauthenticated:
		if allows {
			return credential.Answer{}, malformed{errors.New("denied, with ok_response")}
		}
		return credential.Answer{}, nil
	case code != codeOK:
		return credential.Answer{}, codeError(code, "status of the answer")
	case denies:
		return credential.Answer{}, malformed{errors.New("allowed, with denied_response")}
	case !stated && !allows: // which Envoy takes for an allow
		return credential.Answer{}, malformed{errors.New("neither status nor ok_response")}
	}
	return parseAllow(metadata)
}

// parseAllow returns an allow with the fields of its dynamic metadata, a google.protobuf.Struct.
func parseAllow(metadata []byte) (credential.Answer, error) {
	var all structpb.Struct
	if proto.Unmarshal(metadata, &all) != nil {
		return credential.Answer{}, malformed{errors.New("dynamic_metadata: want a google.protobuf.Struct")}
	}
	value := all.GetFields()[metadataName]
	if value == nil {
		return credential.Answer{Allow: true}, nil
	}
	own := value.GetStructValue()
	if own == nil || own.GetFields()["allow"] != nil {
		return credential.Answer{}, malformed{errors.New(
			"dynamic_metadata: gatehouse: want an object with permissions, ttl, not_after or labels")}
	}
	if own.Fields == nil {
		own.Fields = make(map[string]*structpb.Value)
	}
	own.Fields["allow"] = structpb.NewBoolValue(true)
	text, err := own.MarshalJSON()
	if err != nil {
		return credential.Answer{}, malformed{errors.New("dynamic_metadata: a number is none")}
	}
	return Parse(text)
}

var errWrongType = errors.New("a field has the wrong type")

// visitor gets a field of a message: the value of a varint, or the bytes.
type visitor func(field protowire.Number, kind protowire.Type, value uint64, inner []byte) error

// visitFields calls visit with each field of a message.
func visitFields(message []byte, visit visitor) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var value uint64
		var inner []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			inner, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := visit(field, kind, value, inner); err != nil {
			return err
		}
	}
	return nil
}

// readInteger sets value to a field of a message, if the message has the field.
func readInteger(message []byte, of protowire.Number, value *uint64) error {
	return visitFields(message, func(field protowire.Number, kind protowire.Type, got uint64, _ []byte) error {
		switch {
		case field != of:
			return nil
		case kind != protowire.VarintType:
			return errWrongType
		}
		*value = got
		return nil
	})
}
