// Asks the API server's own code whether a PyTorchJob fits a training-operator's CustomResourceDefinition.
//
// The argument is the definition's YAML file. Reads one case a line, {"id", "job"}, and writes one answer a line,
// {"id", "errors"}: what the schema and the list types (keys that may not come twice) refuse.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"sort"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	check(err)
	definition := &apiextensionsv1.CustomResourceDefinition{}
	check(yaml.Unmarshal(text, definition))
	served := &apiextensions.CustomResourceValidation{}
	check(apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(
		definition.Spec.Versions[0].Schema, served, nil))
	structural, err := schema.NewStructural(served.OpenAPIV3Schema)
	check(err)
	validator, _, err := validation.NewSchemaValidator(served.OpenAPIV3Schema)
	check(err)

	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	for lines.Scan() {
		var asked struct {
			ID  string          `json:"id"`
			Job json.RawMessage `json:"job"`
		}
		check(json.Unmarshal(lines.Bytes(), &asked))
		var job map[string]interface{}
		check(utiljson.Unmarshal(asked.Job, &job))
		defaulting.Default(job, structural)
		found := validation.ValidateCustomResource(nil, job, validator)
		found = append(found, listtype.ValidateListSetsAndMaps(nil, structural, job)...)
		words := []string{}
		for _, each := range found {
			words = append(words, each.Error())
		}
		sort.Strings(words)
		check(answers.Encode(map[string]interface{}{"id": asked.ID, "errors": words}))
	}
}
