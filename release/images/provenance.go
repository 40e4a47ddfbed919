package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

const repository = "https://github.com/gatehouse/gatehouse"

// resource is in-toto's resource descriptor.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// statement is an in-toto statement with provenance as in SLSA 1.0. Without times, the statement is reproducible.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		BuildDefinition struct {
			BuildType            string            `json:"buildType"`
			ExternalParameters   map[string]string `json:"externalParameters"`
			InternalParameters   map[string]string `json:"internalParameters"`
			ResolvedDependencies []resource        `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		RunDetails struct {
			Builder map[string]string `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

// writeProvenance writes the sources of a release's files and images. Subjects are the files in SHA256SUMS and the
// images in digests.txt.
func writeProvenance(out string, from source) error {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, list := range []string{"SHA256SUMS", "digests.txt"} {
		text, err := os.ReadFile(filepath.Join(out, list))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			sum, name, found := strings.Cut(strings.TrimSpace(line), "  ")
			if !found {
				return fmt.Errorf("%s: want DIGEST  NAME in %q", list, line)
			}
			s.Subject = append(s.Subject,
				resource{Name: name, Digest: map[string]string{"sha256": strings.TrimPrefix(sum, "sha256:")}})
		}
	}
	definition := &s.Predicate.BuildDefinition
	definition.BuildType = repository + "/blob/main/release/release.sh"
	definition.ExternalParameters = map[string]string{"version": from.version}
	definition.InternalParameters = map[string]string{"go": runtime.Version(),
		"sourceDateEpoch": fmt.Sprint(from.created.Unix())}
	definition.ResolvedDependencies = []resource{{URI: "git+" + repository,
		Digest: map[string]string{"gitCommit": from.revision}}}
	s.Predicate.RunDetails.Builder = map[string]string{"id": definition.BuildType}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "gatehouse-"+from.version+".provenance.json"), append(text, '\n'), 0o644)
}
