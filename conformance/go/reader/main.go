// Asks one release of Flyte what PyTorchJob it makes of a task template.
//
// Reads one case a line, {"id", "template": TaskTemplate as proto3 JSON, "context": what the execution adds}, and
// writes one answer a line, {"id", "job"} or {"id", "error", "panic"}. The plugin comes from the release's own registry
// and its BuildResource runs as it does in propeller; what it asks of its surroundings is answered by the small types
// below. They embed the release's interfaces, so the same source fits releases whose interfaces differ: a question that
// nothing here answers ends in a panic, which is an answer too.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/golang/protobuf/jsonpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flyteorg/flyte/flyteidl/gen/pb-go/flyteidl/core"
	"github.com/flyteorg/flyte/flyteplugins/go/tasks/pluginmachinery"
	pluginscore "github.com/flyteorg/flyte/flyteplugins/go/tasks/pluginmachinery/core"
	"github.com/flyteorg/flyte/flyteplugins/go/tasks/pluginmachinery/io"
	"github.com/flyteorg/flyte/flyteplugins/go/tasks/pluginmachinery/k8s"
	_ "github.com/flyteorg/flyte/flyteplugins/go/tasks/plugins/k8s/kfoperators/pytorch"
	"github.com/flyteorg/flyte/flytestdlib/storage"
)

// surroundings is what an execution may add to a template. The caller says all of it; nothing is defaulted here.
type surroundings struct {
	Name              string                       `json:"name"`
	Namespace         string                       `json:"namespace"`
	ServiceAccount    string                       `json:"service_account"`
	Platform          *corev1.ResourceRequirements `json:"platform"`
	Resources         *corev1.ResourceRequirements `json:"resources"`
	ContainerImage    string                       `json:"container_image"`
	ExtendedResources json.RawMessage              `json:"extended_resources"`
	Interruptible     bool                         `json:"interruptible"`
	Environment       map[string]string            `json:"environment"`
	Labels            map[string]string            `json:"labels"`
	Annotations       map[string]string            `json:"annotations"`
	Project           string                       `json:"project"`
	Domain            string                       `json:"domain"`
	Execution         string                       `json:"execution"`
	Attempt           uint32                       `json:"attempt"`
	Task              json.RawMessage              `json:"task"`
	Paths             map[string]string            `json:"paths"`
}

type caseLine struct {
	ID       string          `json:"id"`
	Template json.RawMessage `json:"template"`
	Context  surroundings    `json:"context"`
}

type answer struct {
	ID    string          `json:"id"`
	Job   json.RawMessage `json:"job,omitempty"`
	Error string          `json:"error,omitempty"`
	Panic bool            `json:"panic,omitempty"`
}

// execution answers most questions of the plugin; the others are in the types that hold it.
type execution struct {
	surroundings
	template *core.TaskTemplate
}

func fromJSON(text []byte, message interface {
	Reset()
	String() string
	ProtoMessage()
}) error {
	if len(text) == 0 {
		return nil
	}
	// What travels to the backend is binary, where fields of a newer schema are skipped.
	reader := jsonpb.Unmarshaler{AllowUnknownFields: true}
	return reader.Unmarshal(bytes.NewReader(text), message)
}

type taskContext struct {
	pluginscore.TaskExecutionContext
	of *execution
}

func (t taskContext) TaskReader() pluginscore.TaskReader { return taskReader{of: t.of} }
func (t taskContext) InputReader() io.InputReader        { return inputs{of: t.of} }
func (t taskContext) OutputWriter() io.OutputWriter      { return outputs{of: t.of} }
func (t taskContext) TaskExecutionMetadata() pluginscore.TaskExecutionMetadata {
	return metadata{of: t.of}
}

type taskReader struct {
	pluginscore.TaskReader
	of *execution
}

func (t taskReader) Read(context.Context) (*core.TaskTemplate, error) { return t.of.template, nil }
func (t taskReader) Path(context.Context) (storage.DataReference, error) {
	return t.of.path("task_template"), nil
}

func (e *execution) path(name string) storage.DataReference {
	return storage.DataReference(e.Paths[name])
}

type inputs struct {
	io.InputReader
	of *execution
}

func (i inputs) GetInputPath() storage.DataReference       { return i.of.path("input") }
func (i inputs) GetInputPrefixPath() storage.DataReference { return i.of.path("input_prefix") }
func (i inputs) Get(context.Context) (*core.LiteralMap, error) {
	return &core.LiteralMap{}, nil
}

type outputs struct {
	io.OutputWriter
	of *execution
}

func (o outputs) GetOutputPrefixPath() storage.DataReference { return o.of.path("output_prefix") }
func (o outputs) GetRawOutputPrefix() storage.DataReference  { return o.of.path("raw_output_prefix") }
func (o outputs) GetCheckpointPrefix() storage.DataReference { return o.of.path("checkpoint_prefix") }
func (o outputs) GetPreviousCheckpointsPrefix() storage.DataReference {
	return o.of.path("previous_checkpoint_prefix")
}

type taskID struct {
	pluginscore.TaskExecutionID
	of *execution
}

func (t taskID) GetGeneratedName() string                      { return t.of.Name }
func (t taskID) GetGeneratedNameWith(_, _ int) (string, error) { return t.of.Name, nil }
func (t taskID) GetUniqueNodeID() string                       { return "n0" }
func (t taskID) GetID() core.TaskExecutionIdentifier {
	task := &core.Identifier{}
	if err := fromJSON(t.of.Task, task); err != nil {
		panic(err)
	}
	return core.TaskExecutionIdentifier{
		TaskId: task,
		NodeExecutionId: &core.NodeExecutionIdentifier{
			NodeId: "n0",
			ExecutionId: &core.WorkflowExecutionIdentifier{
				Project: t.of.Project, Domain: t.of.Domain, Name: t.of.Execution,
			},
		},
		RetryAttempt: t.of.Attempt,
	}
}

type metadata struct {
	pluginscore.TaskExecutionMetadata
	of *execution
}

func (m metadata) GetOwnerID() types.NamespacedName {
	return types.NamespacedName{Namespace: m.of.Namespace, Name: m.of.Execution}
}
func (m metadata) GetTaskExecutionID() pluginscore.TaskExecutionID { return taskID{of: m.of} }
func (m metadata) GetNamespace() string                            { return m.of.Namespace }
func (m metadata) GetOwnerReference() metav1.OwnerReference        { return metav1.OwnerReference{} }
func (m metadata) GetOverrides() pluginscore.TaskOverrides         { return overrides{of: m.of} }
func (m metadata) GetLabels() map[string]string                    { return m.of.Labels }
func (m metadata) GetAnnotations() map[string]string               { return m.of.Annotations }
func (m metadata) GetMaxAttempts() uint32                          { return 1 }
func (m metadata) GetK8sServiceAccount() string                    { return m.of.ServiceAccount }
func (m metadata) GetSecurityContext() core.SecurityContext        { return core.SecurityContext{} }
func (m metadata) IsInterruptible() bool                           { return m.of.Interruptible }
func (m metadata) GetEnvironmentVariables() map[string]string      { return m.of.Environment }
func (m metadata) GetConsoleURL() string                           { return "" }
func (m metadata) GetPlatformResources() *corev1.ResourceRequirements {
	return m.of.Platform.DeepCopy()
}

type overrides struct {
	pluginscore.TaskOverrides
	of *execution
}

func (o overrides) GetResources() *corev1.ResourceRequirements {
	if o.of.Resources == nil {
		return &corev1.ResourceRequirements{}
	}
	return o.of.Resources.DeepCopy()
}
func (o overrides) GetConfig() *corev1.ConfigMap { return nil }
func (o overrides) GetContainerImage() string    { return o.of.ContainerImage }
func (o overrides) GetPodTemplate() *core.K8SPod { return nil }

func ask(plugin k8s.Plugin, line []byte) (result answer) {
	var asked caseLine
	defer func() {
		if reason := recover(); reason != nil {
			result = answer{ID: asked.ID, Error: fmt.Sprint(reason), Panic: true}
		}
	}()
	if err := json.Unmarshal(line, &asked); err != nil {
		panic(err)
	}
	template := &core.TaskTemplate{}
	if err := fromJSON(asked.Template, template); err != nil {
		return answer{ID: asked.ID, Error: "template: " + err.Error()}
	}
	of := &execution{surroundings: asked.Context, template: template}
	job, err := plugin.BuildResource(context.Background(), taskContext{of: of})
	if err != nil {
		return answer{ID: asked.ID, Error: err.Error()}
	}
	job.SetName(of.Name)
	job.SetNamespace(of.Namespace)
	text, err := json.Marshal(job)
	if err != nil {
		panic(err)
	}
	return answer{ID: asked.ID, Job: text}
}

func main() {
	var plugin k8s.Plugin
	for _, entry := range pluginmachinery.PluginRegistry().GetK8sPlugins() {
		if entry.ID == "pytorch" {
			plugin = entry.Plugin
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	for lines.Scan() {
		if err := answers.Encode(ask(plugin, lines.Bytes())); err != nil {
			panic(err)
		}
	}
}
