// Asks one release of the training-operator what pods it makes of a PyTorchJob.
//
// Reads one case a line, {"id", "job"}, and writes one answer a line (see answer). The release's own code runs in its
// own order: validation (release_*.go says where each release does it), defaulting, then ReconcilePods of the real
// reconciler, twice, with a pod control that only writes down what it is told.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	kubeflowv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
)

// mostPods of a type are made; a case beyond that is told so, for the memory's sake.
const mostPods = 64

type answer struct {
	ID string `json:"id"`
	// Errors of the validation; the job goes no further, unless the release only logs them.
	Errors   []string `json:"errors"`
	Warnings []string `json:"warnings"`
	// Failure after the validation: the reconciler's error, or a panic.
	Failure string `json:"failure,omitempty"`
	// Job is the spec with the operator's defaults.
	Job *kubeflowv1.PyTorchJob `json:"job,omitempty"`
	// Pods in the order in which they are made, masters first.
	Pods []*corev1.Pod `json:"pods"`
	// DeletedNext are the pods that the second reconcile deletes, while all of them are pending.
	DeletedNext []string `json:"deletedNext"`
}

// podControl writes down what the reconciler wants done.
type podControl struct {
	made    []*corev1.Pod
	deleted []string
}

func (p *podControl) CreatePods(string, *corev1.PodTemplateSpec, runtime.Object) error { return nil }
func (p *podControl) CreatePodsOnNode(_, _ string, _ *corev1.PodTemplateSpec, _ runtime.Object, _ *metav1.OwnerReference) error {
	return nil
}
func (p *podControl) CreatePodsWithControllerRef(namespace string, template *corev1.PodTemplateSpec, _ runtime.Object, _ *metav1.OwnerReference) error {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace = namespace
	pod.Status.Phase = corev1.PodPending
	p.made = append(p.made, pod)
	return nil
}
func (p *podControl) DeletePod(_, name string, _ runtime.Object) error {
	p.deleted = append(p.deleted, name)
	return nil
}
func (p *podControl) PatchPod(_, _ string, _ []byte) error { return nil }

func caught(what string, run func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%s: panic: %v", what, reason)
		}
	}()
	return run()
}

func ask(id string, text json.RawMessage) answer {
	result := answer{ID: id, Errors: []string{}, Warnings: []string{}, Pods: []*corev1.Pod{}, DeletedNext: []string{}}
	job := &kubeflowv1.PyTorchJob{}
	if err := json.Unmarshal(text, job); err != nil {
		result.Failure = err.Error()
		return result
	}
	if err := caught("validation", func() error {
		errors, warnings := validate(job)
		result.Errors = append(result.Errors, errors...)
		result.Warnings = append(result.Warnings, warnings...)
		return nil
	}); err != nil {
		result.Failure = err.Error()
		return result
	}
	if len(result.Errors) > 0 && !onlyLogsErrors {
		return result
	}
	scheme := runtime.NewScheme()
	if err := kubeflowv1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	if err := caught("defaulting", func() error { scheme.Default(job); return nil }); err != nil {
		result.Failure = err.Error()
		return result
	}
	result.Job = job
	roles := []string{}
	for role, spec := range job.Spec.PyTorchReplicaSpecs {
		roles = append(roles, string(role))
		if *spec.Replicas > mostPods {
			result.Failure = fmt.Sprintf("more than %d pods of a type", mostPods)
			return result
		}
	}
	sort.Strings(roles)
	control := &podControl{}
	reconciler := &pytorch.PyTorchJobReconciler{Scheme: scheme, Log: logr.Discard()}
	reconciler.JobController = jobController(reconciler, control, &record.FakeRecorder{})
	for _, role := range roles {
		for each, spec := range job.Spec.PyTorchReplicaSpecs {
			if string(each) != role {
				continue
			}
			control.made = nil
			if err := caught("reconcile", func() error {
				return reconciler.ReconcilePods(job, &job.Status, nil, each, spec, job.Spec.PyTorchReplicaSpecs)
			}); err != nil {
				result.Failure = err.Error()
				return result
			}
			result.Pods = append(result.Pods, control.made...)
			if err := caught("second reconcile", func() error {
				return reconciler.ReconcilePods(job, &job.Status, control.made, each, spec, job.Spec.PyTorchReplicaSpecs)
			}); err != nil {
				result.Failure = err.Error()
				return result
			}
		}
	}
	result.DeletedNext = append(result.DeletedNext, control.deleted...)
	return result
}

func main() {
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	configure()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	for lines.Scan() {
		var asked struct {
			ID  string          `json:"id"`
			Job json.RawMessage `json:"job"`
		}
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := answers.Encode(ask(asked.ID, asked.Job)); err != nil {
			panic(err)
		}
	}
}
