//go:build operator1.7 || operator1.8

package main

import (
	"k8s.io/client-go/tools/record"

	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/expectation"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
)

func configure() {
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
}

func jobController(reconciler *pytorch.PyTorchJobReconciler, pods *podControl, events record.EventRecorder) common.JobController {
	return common.JobController{
		Controller: reconciler, PodControl: pods, Recorder: events, Expectations: expectation.NewControllerExpectations(),
	}
}
