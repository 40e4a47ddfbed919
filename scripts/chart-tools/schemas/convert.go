package main

import (
	"encoding/json"
	"strings"

	"sigs.k8s.io/yaml"
)

// fromOpenAPI converts the OpenAPI document of Kubernetes.
func fromOpenAPI(file []byte) (schemas, error) {
	var document struct{ Definitions map[string]map[string]any }
	if err := json.Unmarshal(file, &document); err != nil {
		return nil, err
	}
	s := schemas{}
	for name, definition := range document.Definitions {
		switch {
		case strings.HasSuffix(name, ".IntOrString"), strings.HasSuffix(name, ".Quantity"):
			definition["type"] = []string{"string", "number"}
		}
		refuseUnknown(definition)
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		for _, item := range kinds {
			kind := item.(map[string]any)
			s[fileName(kind["group"].(string), kind["version"].(string), kind["kind"].(string))] =
				map[string]any{"$ref": "_definitions.json#/definitions/" + name}
		}
	}
	s["_definitions"] = map[string]any{"definitions": document.Definitions}
	return s, nil
}

// fromCRDs converts the custom resource definitions of a YAML file.
func fromCRDs(file []byte) (schemas, error) {
	s := schemas{}
	for document := range strings.SplitSeq("\n"+string(file), "\n---") {
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &crd); err != nil {
			return nil, err
		}
		for _, version := range crd.Spec.Versions {
			schema := version.Schema.OpenAPIV3Schema
			refuseUnknown(schema)
			for _, field := range []string{"apiVersion", "kind", "metadata"} { // missing in Istio's definitions
				if properties, ok := schema["properties"].(map[string]any); ok && properties[field] == nil {
					properties[field] = map[string]any{}
				}
			}
			s[fileName(crd.Spec.Group, version.Name, crd.Spec.Names.Kind)] = schema
		}
	}
	return s, nil
}

// refuseUnknown makes v and the schemas below refuse unknown fields, as the API server warns of unknown fields.
func refuseUnknown(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			refuseUnknown(item)
		}
	case map[string]any:
		_, named := v["properties"].(map[string]any)
		_, others := v["additionalProperties"]
		free, _ := v["x-kubernetes-preserve-unknown-fields"].(bool)
		if named && !others && !free {
			v["additionalProperties"] = false
		}
		for key, item := range v {
			if properties, ok := item.(map[string]any); ok && key == "properties" {
				for _, property := range properties { // names of fields, not keywords
					refuseUnknown(property)
				}
				continue
			}
			refuseUnknown(item)
		}
	}
}
