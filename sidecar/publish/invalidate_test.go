package publish

import (
	"errors"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)
