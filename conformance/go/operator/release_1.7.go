//go:build operator1.7

package main

import kubeflowv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"

// The reconciler returns what the validation says, and is called again and again.
const onlyLogsErrors = false

func validate(job *kubeflowv1.PyTorchJob) ([]string, []string) {
	return everyError(func() error { return kubeflowv1.ValidateV1PyTorchJob(job) }), nil
}
