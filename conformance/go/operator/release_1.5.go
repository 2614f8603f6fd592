//go:build operator1.5

package main

import (
	"github.com/kubeflow/common/pkg/controller.v1/common"
	"github.com/kubeflow/common/pkg/controller.v1/expectation"
	"k8s.io/client-go/tools/record"

	kubeflowv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
)

// The reconciler logs what the validation says, and goes on.
const onlyLogsErrors = true

func validate(job *kubeflowv1.PyTorchJob) ([]string, []string) {
	return everyError(func() error { return kubeflowv1.ValidateV1PyTorchJobSpec(&job.Spec) }), nil
}

func configure() {}

func jobController(reconciler *pytorch.PyTorchJobReconciler, pods *podControl, events record.EventRecorder) common.JobController {
	return common.JobController{
		Controller: reconciler, PodControl: pods, Recorder: events, Expectations: expectation.NewControllerExpectations(),
	}
}
