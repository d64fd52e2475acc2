// Calls the service with the client that openapi-generator generated for Go.
package main

import (
	"context"
	"log"
	"os"
	"strings"

	openapi "github.com/GIT_USER_ID/GIT_REPO_ID"
)

func check(holds bool, what string, err error) {
	if !holds {
		log.Fatal(what, ": ", err)
	}
}

func main() {
	configuration := openapi.NewConfiguration()
	configuration.Servers = openapi.ServerConfigurations{{URL: os.Args[1]}}
	client := openapi.NewAPIClient(configuration)
	api, ctx := client.ClassificationAPI, context.Background()

	texts := []string{"I love this!", ""}
	body := openapi.NewClassifyRequest(openapi.ArrayOfStringAsClassifyRequestInputs(&texts))
	answer, _, err := api.Classify(ctx).ClassifyRequest(*body).Execute()
	check(err == nil && answer.Results[0].Prediction.Label == "positive", "classify", err)
	check(answer.Results[1].FailedItem.Error.Code == "empty_text", "the error of a text", err)

	body.SetModel("none")
	_, _, err = api.Classify(ctx).ClassifyRequest(*body).Execute()
	failed, _ := err.(*openapi.GenericOpenAPIError)
	check(failed != nil, "an unknown model", err)
	problem, _ := failed.Model().(openapi.Problem)
	check(problem.Code == "model_not_found", "the problem of an unknown model", nil)

	text := "hi"
	words := openapi.NewTokenizeRequest(openapi.StringAsTokenizeRequestInputs(&text))
	tokenized, _, err := api.Tokenize(ctx).TokenizeRequest(*words).Execute()
	check(err == nil && tokenized.Results[0].Tokens.Count == 3, "tokenize", err)

	line := "{\"id\": 1, \"text\": \"I love this!\"}\n"
	lines, _, err := api.ClassifyStream(ctx).Body(line).Execute()
	check(strings.Contains(lines, "\"label\":\"positive\""), "classifyStream", err)

	ready, _, err := client.OperationsAPI.CheckReady(ctx).Execute()
	check(err == nil && ready.Status == "ready", "checkReady", err)
	models, _, err := client.OperationsAPI.ListModels(ctx).Execute()
	check(err == nil && models.Models[0].Name == "minilm-l6-tweet-sentiment", "listModels", err)
	info, _, err := client.OperationsAPI.GetInfo(ctx).Execute()
	check(err == nil && info.Limits.MaxInflightBytes > 0, "getInfo", err)
}
